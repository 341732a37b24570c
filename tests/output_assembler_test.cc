// What is released of a stream and when: by example, and against a naive assembler over random
// tokens, stop strings and characters cut in pieces.
#include "engine/output_assembler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/rng.h"
#include "engine/byte_alphabet.h"
#include "engine/utf8.h"

namespace cairn {
namespace {

// A tokenizer whose token i has the bytes pieces[i]; an empty piece becomes a control token.
std::unique_ptr<const Tokenizer> MakeTokenizer(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (const std::string& piece : pieces) {
    std::string spelling;
    for (const char byte : piece) spelling += SpellByte(static_cast<uint8_t>(byte));
    const std::string control = "<|" + std::to_string(vocabulary.tokens.size()) + "|>";
    vocabulary.tokens.push_back(piece.empty() ? control : spelling);
    vocabulary.types.push_back(piece.empty() ? kTokenControl : kTokenNormal);
  }
  return *Tokenizer::Create(vocabulary);
}

std::string TextOf(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Unit unit = NextUtf8Unit(bytes);
    text += unit.kind == Utf8Kind::kCharacter ? bytes.substr(0, unit.length)
                                              : std::string_view(kReplacementCharacter);
    bytes.remove_prefix(unit.length);
  }
  return text;
}

using Ids = std::vector<uint32_t>;

TEST(OutputAssembler, WithoutStopStringsNothingIsHeld) {
  const auto tokenizer = MakeTokenizer({"ab", "c", ""});
  OutputAssembler assembler(*tokenizer, {});
  const Released first = assembler.Push(0, std::nullopt);
  EXPECT_EQ(first.token_ids, Ids{0});
  EXPECT_EQ(first.text, "ab");
  EXPECT_TRUE(first.logprobs.empty());
  EXPECT_EQ(assembler.Push(2, std::nullopt).token_ids, Ids{2});  // a control token has no text
  EXPECT_EQ(assembler.Push(1, std::nullopt).text, "c");
  EXPECT_EQ(assembler.held_count(), 0u);
  EXPECT_TRUE(assembler.Finish().text.empty());
}

TEST(OutputAssembler, HoldsWhatMayBecomeAStopString) {
  const auto tokenizer = MakeTokenizer({"x", "EN", "D", "y"});
  OutputAssembler assembler(*tokenizer, {"END"});
  EXPECT_EQ(assembler.Push(0, std::nullopt).text, "x");
  EXPECT_TRUE(assembler.Push(1, std::nullopt).token_ids.empty());
  EXPECT_EQ(assembler.held_count(), 1u);
  const Released freed = assembler.Push(3, std::nullopt);  // "ENy" is no stop string
  EXPECT_EQ(freed.token_ids, (Ids{1, 3}));
  EXPECT_EQ(freed.text, "ENy");
  EXPECT_TRUE(assembler.Push(1, std::nullopt).token_ids.empty());
  const Released stopped = assembler.Push(2, std::nullopt);
  EXPECT_TRUE(stopped.token_ids.empty());
  EXPECT_EQ(stopped.text, "");
  EXPECT_EQ(stopped.stop_string, "END");
  EXPECT_EQ(assembler.held_count(), 0u);
}

TEST(OutputAssembler, ShowsThePartOfATokenBeforeTheMatch) {
  const auto tokenizer = MakeTokenizer({"hello E", "ND and more"});
  OutputAssembler assembler(*tokenizer, {"END"});
  EXPECT_TRUE(assembler.Push(0, std::nullopt).text.empty());
  const Released stopped = assembler.Push(1, std::nullopt);
  EXPECT_TRUE(stopped.token_ids.empty());  // no token ends before the match
  EXPECT_EQ(stopped.text, "hello ");
  EXPECT_EQ(stopped.stop_string, "END");
}

TEST(OutputAssembler, FinishReleasesWhatIsHeld) {
  const auto tokenizer = MakeTokenizer({"EN", "\xE2\x82"});
  OutputAssembler assembler(*tokenizer, {"END"});
  EXPECT_TRUE(assembler.Push(1, std::nullopt).text.empty());  // two bytes of a euro sign
  EXPECT_EQ(assembler.Push(0, std::nullopt).token_ids, Ids{});
  const Released rest = assembler.Finish();
  EXPECT_EQ(rest.token_ids, Ids{0});
  EXPECT_EQ(rest.text,
            "\xEF\xBF\xBD"
            "EN");
  EXPECT_EQ(rest.stop_string, std::nullopt);
}

TEST(OutputAssembler, TheMatchThatBeginsFirstWinsThenTheOneListedFirst) {
  const auto tokenizer = MakeTokenizer({"xabcd"});
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"bc", "abcd"}, "abcd"}, {{"ab", "abc"}, "ab"}, {{"abc", "ab"}, "abc"}, {{"cd", "b"}, "b"}};
  for (const auto& [stop, winner] : cases) {
    OutputAssembler assembler(*tokenizer, stop);
    EXPECT_EQ(assembler.Push(0, std::nullopt).stop_string, winner);
  }
}

TEST(OutputAssembler, APrimedStreamCompletesACharacter) {
  const auto tokenizer = MakeTokenizer({"a\xF0\x9F", "\x98\x80", "z"});
  OutputAssembler assembler(*tokenizer, {"\xF0\x9F\x98\x80"});
  assembler.Prime(Ids{2, 0});
  // The bytes before the stream complete the character, but take no part in a match.
  EXPECT_EQ(assembler.Push(1, std::nullopt).text, "\xF0\x9F\x98\x80");
  EXPECT_EQ(assembler.Push(2, std::nullopt).text, "z");
}

TEST(OutputAssembler, LogprobsTravelWithTheirTokens) {
  const auto tokenizer = MakeTokenizer({"E", "x", "ND"});
  OutputAssembler assembler(*tokenizer, {"END"});
  assembler.Push(0, TokenLogprob{0, -1.0f, {{7, -0.5f, {}}}});
  const Released freed = assembler.Push(1, TokenLogprob{1, -2.0f, {}});
  ASSERT_EQ(freed.logprobs.size(), 2u);
  EXPECT_EQ(freed.logprobs[0].token_id, 0u);
  EXPECT_EQ(freed.logprobs[0].top[0].token_id, 7u);
  EXPECT_EQ(freed.logprobs[1].logprob, -2.0f);
  assembler.Push(0, TokenLogprob{0, -3.0f, {}});
  EXPECT_TRUE(assembler.Push(2, TokenLogprob{2, -4.0f, {}}).logprobs.empty());
}

// The rules, over the whole stream at once each time.
class NaiveAssembler {
 public:
  NaiveAssembler(const Tokenizer& tokenizer, std::vector<std::string> stop)
      : tokenizer_(tokenizer), stop_(std::move(stop)) {}

  // How many tokens are released after `ids`, and the visible bytes if it stops here.
  struct State {
    size_t released = 0;
    std::string visible;  // bytes of the released tokens, or up to the match
    std::optional<std::string> stop_string;
  };
  State After(const Ids& ids) const {
    std::string bytes;
    std::vector<size_t> ends;
    for (const uint32_t id : ids) {
      bytes += tokenizer_.TokenBytes(id);
      ends.push_back(bytes.size());
    }
    State state;
    size_t limit = std::string::npos;
    for (const std::string& stop : stop_) {
      const size_t at = bytes.find(stop);
      if (at != std::string::npos && (limit == std::string::npos || at < limit)) {
        limit = at;
        state.stop_string = stop;
      }
    }
    if (!state.stop_string) limit = bytes.size() - LongestHeld(bytes);
    for (const size_t end : ends) {
      if (end > limit) break;
      ++state.released;
    }
    const size_t shown = state.stop_string ? limit : state.released ? ends[state.released - 1] : 0;
    state.visible = bytes.substr(0, shown);
    return state;
  }

 private:
  size_t LongestHeld(const std::string& bytes) const {
    size_t longest = 0;
    for (const std::string& stop : stop_) {
      for (size_t n = 1; n < stop.size() && n <= bytes.size(); ++n) {
        if (bytes.ends_with(stop.substr(0, n))) longest = std::max(longest, n);
      }
    }
    return longest;
  }
  const Tokenizer& tokenizer_;
  const std::vector<std::string> stop_;
};

std::string RandomPiece(Rng& rng) {
  static const std::string kUnits[] = {"a", "b", "a", "\xC3", "\xA9", "\xF0\x9F", "\x98\x80", "ab"};
  std::string piece;
  for (size_t n = rng.Below(4); n > 0; --n) piece += kUnits[rng.Below(std::size(kUnits))];
  return piece;
}

std::vector<std::string> RandomPieces(Rng& rng) {
  std::vector<std::string> pieces = {"a", "b", ""};
  while (pieces.size() < 12) {
    const std::string piece = RandomPiece(rng);
    if (std::find(pieces.begin(), pieces.end(), piece) == pieces.end()) pieces.push_back(piece);
  }
  return pieces;
}

std::vector<std::string> RandomStops(Rng& rng) {
  std::vector<std::string> stops;
  for (size_t n = rng.Below(4); n > 0; --n) {
    std::string stop;
    while (stop.empty() || rng.Chance(0.6)) stop += RandomPiece(rng);
    stops.push_back(stop);
  }
  return stops;
}

// Pushes `ids` until a match, checking every delta; finishes if there was none.
void CompareWithNaive(const Tokenizer& tokenizer, const std::vector<std::string>& stops,
                      const Ids& ids) {
  const NaiveAssembler naive(tokenizer, stops);
  OutputAssembler assembler(tokenizer, stops);
  Ids pushed, released;
  std::string text;
  const auto take = [&](const Released& delta) {
    released.insert(released.end(), delta.token_ids.begin(), delta.token_ids.end());
    EXPECT_EQ(FindInvalidUtf8(delta.text), std::nullopt);
    ASSERT_EQ(delta.logprobs.size(), delta.token_ids.size());
    for (size_t i = 0; i < delta.logprobs.size(); ++i) {
      EXPECT_EQ(delta.logprobs[i].token_id, delta.token_ids[i]);
    }
    text += delta.text;
  };
  for (const uint32_t id : ids) {
    pushed.push_back(id);
    const Released delta = assembler.Push(id, TokenLogprob{id, 0, {}});
    take(delta);
    const NaiveAssembler::State state = naive.After(pushed);
    ASSERT_EQ(delta.stop_string, state.stop_string);
    ASSERT_EQ(released,
              Ids(pushed.begin(), pushed.begin() + static_cast<ptrdiff_t>(state.released)));
    if (state.stop_string) {
      ASSERT_EQ(text, TextOf(state.visible));
      return;
    }
    ASSERT_TRUE(TextOf(state.visible).starts_with(text));
    ASSERT_EQ(assembler.held_count(), pushed.size() - released.size());
  }
  take(assembler.Finish());
  std::string all;
  for (const uint32_t id : ids) all += tokenizer.TokenBytes(id);
  EXPECT_EQ(released, ids);
  EXPECT_EQ(text, TextOf(all));
}

TEST(OutputAssembler, AgreesWithTheNaiveOne) {
  Rng rng(12);
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(round);
    const std::vector<std::string> pieces = RandomPieces(rng);
    const auto tokenizer = MakeTokenizer(pieces);
    const std::vector<std::string> stops = RandomStops(rng);
    Ids ids(1 + rng.Below(30));
    for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.Below(pieces.size()));
    CompareWithNaive(*tokenizer, stops, ids);
    if (HasFatalFailure()) return;
  }
}

TEST(OutputAssembler, AStreamResumedAtAnyReleasedTokenGoesOnTheSame) {
  Rng rng(13);
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    const std::vector<std::string> pieces = RandomPieces(rng);
    const auto tokenizer = MakeTokenizer(pieces);
    const std::vector<std::string> stops = RandomStops(rng);
    Ids ids(20);
    for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.Below(pieces.size()));

    // The text and the tokens of the whole stream, and the text that was out at each release.
    Ids whole;
    std::string text;
    std::optional<std::string> stopped;
    std::vector<std::pair<size_t, std::string>> cuts = {{0, ""}};
    OutputAssembler lone(*tokenizer, stops);
    for (size_t i = 0; i < ids.size() && !stopped; ++i) {
      const Released delta = lone.Push(ids[i], std::nullopt);
      whole.insert(whole.end(), delta.token_ids.begin(), delta.token_ids.end());
      text += delta.text;
      stopped = delta.stop_string;
      if (!stopped) cuts.emplace_back(whole.size(), text);
    }
    for (const auto& [cut, text_before] : cuts) {
      OutputAssembler resumed(*tokenizer, stops);
      resumed.Prime(std::span(ids).first(cut));
      Ids tokens(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(cut));
      std::string resumed_text = text_before;
      std::optional<std::string> resumed_stop;
      for (size_t i = cut; i < ids.size() && !resumed_stop; ++i) {
        const Released delta = resumed.Push(ids[i], std::nullopt);
        tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
        resumed_text += delta.text;
        resumed_stop = delta.stop_string;
      }
      ASSERT_EQ(tokens, whole);
      ASSERT_EQ(resumed_text, text);
      ASSERT_EQ(resumed_stop, stopped);
    }
  }
}

TEST(OutputAssembler, ALongStopStringIsFollowedInLinearTime) {
  const auto tokenizer = MakeTokenizer({"a", "b"});
  OutputAssembler assembler(*tokenizer, std::vector<std::string>(16, std::string(255, 'a') + "b"));
  Ids released;
  for (int i = 0; i < 100000; ++i) {
    const Released delta = assembler.Push(0, std::nullopt);
    released.insert(released.end(), delta.token_ids.begin(), delta.token_ids.end());
  }
  EXPECT_EQ(assembler.held_count(), 255u);
  EXPECT_EQ(released.size(), 100000u - 255u);
  const Released stopped = assembler.Push(1, std::nullopt);
  EXPECT_TRUE(stopped.stop_string.has_value());
  EXPECT_TRUE(stopped.token_ids.empty());
}

}  // namespace
}  // namespace cairn
