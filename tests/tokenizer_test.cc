// The tokenizer's parts, case by case. tests/tokenizer_oracle_test.py compares the whole with an
// independent implementation on many texts.
#include "engine/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "engine/byte_alphabet.h"
#include "engine/byte_pair_merger.h"
#include "engine/gguf_file.h"
#include "engine/pre_tokenizer.h"
#include "engine/utf8.h"
#include "engine/vocabulary.h"
#include "tests/fakes/tiny_vocabulary.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> MakeTokenizer(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

std::vector<uint32_t> Encode(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : std::vector<uint32_t>();
}

std::string BytesOf(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids) {
  std::string bytes;
  for (const uint32_t id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes;
}

TEST(Utf8, FindsTheFirstByteThatIsNoCharacter) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("aé€😀 0123456789"), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("\xF4\x8F\xBF\xBF"), std::nullopt);  // U+10FFFF
  EXPECT_EQ(FindInvalidUtf8("12345678\xFF"), 8);
  EXPECT_EQ(FindInvalidUtf8("1234567\xFF"), 7);
  EXPECT_EQ(FindInvalidUtf8("é\x80"), 2);
  EXPECT_EQ(FindInvalidUtf8("a\xC0\xAF"), 1);          // overlong
  EXPECT_EQ(FindInvalidUtf8("a\xE0\x9F\xBF"), 1);      // overlong
  EXPECT_EQ(FindInvalidUtf8("a\xED\xA0\x80"), 1);      // surrogate
  EXPECT_EQ(FindInvalidUtf8("a\xF4\x90\x80\x80"), 1);  // above U+10FFFF
  EXPECT_EQ(FindInvalidUtf8("ab\xF0\x9F\x98"), 2);     // incomplete
}

TEST(Utf8, EveryCodePointIsOneCharacter) {
  for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    std::string text;
    if (code_point < 0x80) {
      text = {static_cast<char>(code_point)};
    } else if (code_point < 0x800) {
      text = {static_cast<char>(0xC0 | code_point >> 6),
              static_cast<char>(0x80 | (code_point & 63))};
    } else if (code_point < 0x10000) {
      text = {static_cast<char>(0xE0 | code_point >> 12),
              static_cast<char>(0x80 | (code_point >> 6 & 63)),
              static_cast<char>(0x80 | (code_point & 63))};
    } else {
      text = {static_cast<char>(0xF0 | code_point >> 18),
              static_cast<char>(0x80 | (code_point >> 12 & 63)),
              static_cast<char>(0x80 | (code_point >> 6 & 63)),
              static_cast<char>(0x80 | (code_point & 63))};
    }
    const bool is_surrogate = code_point >= 0xD800 && code_point < 0xE000;
    const Utf8Unit unit = NextUtf8Unit(text);
    ASSERT_EQ(unit.kind == Utf8Kind::kCharacter, !is_surrogate) << code_point;
    if (is_surrogate) continue;
    ASSERT_EQ(unit.length, text.size());
    ASSERT_EQ(DecodeUtf8(text), code_point);
    for (size_t size = 1; size < text.size(); ++size) {
      ASSERT_EQ(NextUtf8Unit(text.substr(0, size)).kind, Utf8Kind::kIncomplete) << code_point;
    }
  }
}

TEST(ByteAlphabet, SpellsEveryByteDifferently) {
  std::set<std::string> spellings;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const std::string spelling = SpellByte(static_cast<uint8_t>(byte));
    spellings.insert(spelling);
    EXPECT_EQ(BytesOfSpelling(spelling), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(spellings.size(), 256u);
  EXPECT_EQ(SpellByte('a'), "a");
  EXPECT_EQ(SpellByte(' '), "Ġ");
  EXPECT_EQ(SpellByte('\n'), "Ċ");
  EXPECT_EQ(SpellByte(0xE9), "é");
  EXPECT_EQ(SpellByte(0xAD), "Ń");  // the soft hyphen shows nothing, so it comes last
  EXPECT_EQ(BytesOfSpelling("Ġx"), " x");
  EXPECT_EQ(BytesOfSpelling("a b"), std::nullopt);
  EXPECT_EQ(BytesOfSpelling("ń"), std::nullopt);
}

std::vector<std::string> PiecesOf(std::string_view pre, std::string_view text) {
  const auto pre_tokenizer = PreTokenizer::Create(pre);
  EXPECT_TRUE(pre_tokenizer.ok());
  PreTokenizer::Pieces pieces(**pre_tokenizer, text);
  std::vector<std::string> result;
  while (const auto piece = pieces.Next()) result.emplace_back(*piece);
  return result;
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(PiecesOf("gpt-2", ""), ElementsAre());
  EXPECT_THAT(PiecesOf("gpt-2", "It's 1999, isn't  it?"),
              ElementsAre("It", "'s", " 1999", ",", " isn", "'t", " ", " it", "?"));
  EXPECT_THAT(PiecesOf("gpt-2", "IT'S"), ElementsAre("IT", "'", "S"));
  EXPECT_THAT(PiecesOf("gpt-2", "a\n\n  b  "), ElementsAre("a", "\n\n ", " b", "  "));
  EXPECT_THAT(PiecesOf("gpt-2", "größer ١٢ 天地"), ElementsAre("größer", " ١٢", " 天地"));
  EXPECT_THAT(PiecesOf("gpt-2", "x\u180Ey\u00A0\u3000z"),  // U+180E is no white space
              ElementsAre("x", "\u180E", "y", "\u00A0", "\u3000", "z"));
  EXPECT_THAT(PiecesOf("default", "a 12"), ElementsAre("a", " 12"));
  EXPECT_THAT(PiecesOf("", "a 12"), ElementsAre("a", " 12"));
}

TEST(PreTokenizer, SmolLmSetsDigitsApart) {
  EXPECT_THAT(PiecesOf("smollm", "in 1999: 3x"),
              ElementsAre("in", " ", "1", "9", "9", "9", ":", " ", "3", "x"));
  EXPECT_THAT(PiecesOf("smollm", "a  5"), ElementsAre("a", "  ", "5"));
  EXPECT_THAT(PiecesOf("smollm", "a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(PiecesOf("smollm", "Ⅷ½'s"), ElementsAre("Ⅷ", "½", "'s"));
}

TEST(PreTokenizer, Llama3) {
  EXPECT_THAT(PiecesOf("llama-bpe", "IT'S 12345!\n\n (ok)"),
              ElementsAre("IT", "'S", " ", "123", "45", "!\n\n", " (", "ok", ")"));
  EXPECT_THAT(PiecesOf("llama-bpe", "a \n \n  b"), ElementsAre("a", " \n \n", " ", " b"));
  EXPECT_THAT(PiecesOf("llama-bpe", "-x\ty"), ElementsAre("-x", "\ty"));
  EXPECT_THAT(PiecesOf("llama-bpe", "a'ſb"), ElementsAre("a", "'ſ", "b"));  // ſ folds to s
}

TEST(PreTokenizer, RefusesANameThatItDoesNotKnow) {
  const Status status = PreTokenizer::Create("tekken").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "tokenizer.ggml.pre: expected smollm, gpt-2 or llama-bpe, found \"tekken\"");
}

// The definition, without any cleverness.
std::vector<uint32_t> NaiveMerge(
    std::vector<uint32_t> symbols,
    const std::map<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>>& merges) {
  while (true) {
    size_t best = symbols.size();  // none
    uint32_t best_rank = UINT32_MAX;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto merge = merges.find({symbols[i], symbols[i + 1]});
      if (merge == merges.end() || merge->second.first >= best_rank) continue;
      best = i;
      best_rank = merge->second.first;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = merges.at({symbols[best], symbols[best + 1]}).second;
    symbols.erase(std::next(symbols.begin(), static_cast<ptrdiff_t>(best) + 1));
  }
}

TEST(BytePairMerger, FollowsTheDefinitionForShortAndLongPieces) {
  Rng rng(7);
  for (int table = 0; table < 40; ++table) {
    std::array<uint32_t, 256> byte_tokens;
    for (uint32_t byte = 0; byte < 256; ++byte) byte_tokens[byte] = byte;
    byte_tokens['c'] = BytePairMerger::kNoToken;
    const size_t merge_count = 1 + rng.Below(60);
    BytePairMerger merger(byte_tokens, merge_count);
    std::map<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>> merges;
    std::vector<uint32_t> tokens = {'a', 'b', 'd'};
    for (uint32_t rank = 0; rank < merge_count; ++rank) {
      const uint32_t left = tokens[rng.Below(tokens.size())];
      const uint32_t right = tokens[rng.Below(tokens.size())];
      const uint32_t merged = 256 + rank;
      merger.Add(left, right, merged);
      merges[{left, right}] = {rank, merged};  // the later of two wins, as Add says
      tokens.push_back(merged);
    }
    for (const size_t length : {0, 1, 2, 3, 30, 63, 64, 65, 66, 200, 500}) {
      std::string piece;
      std::vector<uint32_t> symbols;
      while (piece.size() < length) {
        piece += "abcd"[rng.Below(4)];
        if (piece.back() != 'c') symbols.push_back(byte_tokens[piece.back()]);
      }
      std::vector<uint32_t> merged;
      merger.Encode(piece, merged);
      ASSERT_EQ(merged, NaiveMerge(symbols, merges)) << piece;
    }
  }
}

TEST(Tokenizer, MergesInsidePieces) {
  const Vocabulary vocabulary = TinyVocabulary();
  const auto tokenizer = MakeTokenizer(vocabulary);
  EXPECT_EQ(tokenizer->size(), vocabulary.tokens.size());
  EXPECT_THAT(Encode(*tokenizer, ""), ElementsAre());
  EXPECT_THAT(Encode(*tokenizer, "hello"), ElementsAre(IdOf(vocabulary, "hello")));
  EXPECT_THAT(Encode(*tokenizer, "help"),
              ElementsAre(IdOf(vocabulary, "he"), TinyByte('l'), TinyByte('p')));
  EXPECT_THAT(Encode(*tokenizer, "hell w"),
              ElementsAre(IdOf(vocabulary, "hell"), IdOf(vocabulary, "Ġw")));
  EXPECT_THAT(Encode(*tokenizer, "12"), ElementsAre(TinyByte('1'), TinyByte('2')));
  EXPECT_THAT(Encode(*MakeTokenizer(TinyVocabulary("gpt-2")), "12"),
              ElementsAre(IdOf(vocabulary, "12")));
  EXPECT_EQ(tokenizer->TokenBytes(IdOf(vocabulary, "Ġw")), " w");
  EXPECT_EQ(tokenizer->TokenBytes(TinyByte(0xFF)), "\xFF");
  EXPECT_EQ(tokenizer->longest_token_bytes(), 5u);
}

TEST(Tokenizer, TakesWholePiecesFirstWhereTheModelDoes) {
  Vocabulary vocabulary = TinyVocabulary("llama-bpe");
  vocabulary.tokens.push_back("xyz");  // no merge makes it
  vocabulary.types.push_back(kTokenNormal);
  const uint32_t xyz = IdOf(vocabulary, "xyz");
  EXPECT_THAT(Encode(*MakeTokenizer(vocabulary), "xyz"), ElementsAre(xyz));
  vocabulary.pre = "gpt-2";
  EXPECT_THAT(Encode(*MakeTokenizer(vocabulary), "xyz"),
              ElementsAre(TinyByte('x'), TinyByte('y'), TinyByte('z')));
}

TEST(Tokenizer, NeverReadsSpecialTokensOutOfText) {
  Vocabulary vocabulary = TinyVocabulary("llama-bpe", {"<|eot_id|>", "xyz"});
  vocabulary.tokens.push_back("user-defined");
  vocabulary.types.push_back(kTokenUserDefined);
  const auto tokenizer = MakeTokenizer(vocabulary);
  for (const std::string& text : vocabulary.tokens) {
    for (const std::string& padded : {text, " " + text + "\n", text + text}) {
      for (const uint32_t id : Encode(*tokenizer, padded)) {
        EXPECT_EQ(vocabulary.types[id], kTokenNormal) << padded;
      }
    }
  }
}

TEST(Tokenizer, ControlTokensHaveNoText) {
  Vocabulary vocabulary = TinyVocabulary("smollm", {"<tool>"});
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"[PAD0]", "<note>", "<end_of_turn>"});
  vocabulary.types.insert(vocabulary.types.end(),
                          {kTokenUnused, kTokenUserDefined, kTokenUserDefined});
  const auto tokenizer = MakeTokenizer(vocabulary);
  for (const char* text : {"<|im_start|>", "<tool>", "[PAD0]", "<end_of_turn>"}) {
    EXPECT_TRUE(tokenizer->IsControl(IdOf(vocabulary, text))) << text;
    EXPECT_EQ(tokenizer->TokenBytes(IdOf(vocabulary, text)), "");
  }
  EXPECT_FALSE(tokenizer->IsControl(IdOf(vocabulary, "<note>")));
  EXPECT_EQ(tokenizer->TokenBytes(IdOf(vocabulary, "<note>")), "<note>");
  EXPECT_FALSE(tokenizer->IsControl(TinyByte('a')));

  EXPECT_EQ(tokenizer->FindSpecial("<tool>"), IdOf(vocabulary, "<tool>"));
  EXPECT_EQ(tokenizer->FindSpecial("<note>"), IdOf(vocabulary, "<note>"));
  EXPECT_EQ(tokenizer->FindSpecial("hello"), std::nullopt);
  EXPECT_EQ(tokenizer->FindSpecial("[PAD0]"), std::nullopt);
}

TEST(Tokenizer, KnowsTheTokensThatEndAnAnswer) {
  Vocabulary vocabulary = TinyVocabulary("smollm", {"<|eot_id|>", "<tool>", "<stop>"});
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"</s>"});
  vocabulary.types.insert(vocabulary.types.end(), {kTokenNormal});  // text, for this model
  vocabulary.eot = IdOf(vocabulary, "<stop>");
  const auto tokenizer = MakeTokenizer(vocabulary);
  EXPECT_THAT(tokenizer->end_ids(),
              ElementsAre(kTinyEndOfText, kTinyImEnd, IdOf(vocabulary, "<|eot_id|>"),
                          IdOf(vocabulary, "<stop>")));
  EXPECT_TRUE(tokenizer->IsEnd(kTinyImEnd));
  EXPECT_FALSE(tokenizer->IsEnd(kTinyImStart));
  EXPECT_FALSE(tokenizer->IsEnd(IdOf(vocabulary, "</s>")));
}

TEST(Tokenizer, LeavesOutBytesWithoutAToken) {
  Vocabulary vocabulary = TinyVocabulary();
  vocabulary.tokens[TinyByte('x')] = "<unused>";
  vocabulary.types[TinyByte('x')] = kTokenUnused;
  EXPECT_THAT(Encode(*MakeTokenizer(vocabulary), "hxello"), ElementsAre(IdOf(vocabulary, "hello")));
  EXPECT_THAT(Encode(*MakeTokenizer(vocabulary), "x"), ElementsAre());
}

TEST(Tokenizer, NamesTheByteThatIsNotUtf8) {
  const auto tokenizer = MakeTokenizer(TinyVocabulary());
  const Status status = tokenizer->Encode("hello \xE2\x82").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "text: invalid UTF-8 at byte 6");
}

struct BadVocabulary {
  const char* name;
  void (*spoil)(Vocabulary&);
  Code code;
  const char* message;
};

class BadVocabularyTest : public testing::TestWithParam<BadVocabulary> {};

TEST_P(BadVocabularyTest, IsRefusedWithAClearMessage) {
  Vocabulary vocabulary = TinyVocabulary();
  GetParam().spoil(vocabulary);
  const Status status = Tokenizer::Create(vocabulary).status();
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_EQ(status.message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadVocabularyTest,
    testing::Values(
        BadVocabulary{"Model", [](Vocabulary& v) { v.model = "llama"; }, Code::kUnimplemented,
                      "tokenizer.ggml.model: expected \"gpt2\" (byte-level BPE), found \"llama\""},
        BadVocabulary{"Empty",
                      [](Vocabulary& v) {
                        v.tokens.clear();
                        v.types.clear();
                      },
                      Code::kInvalidArgument,
                      "tokenizer.ggml.tokens: expected 1 to 2^31 - 1 tokens, found 0"},
        BadVocabulary{"TypeCount", [](Vocabulary& v) { v.types.resize(5); }, Code::kInvalidArgument,
                      "tokenizer.ggml.token_type: expected 277 entries as in tokens, found 5"},
        BadVocabulary{"Type", [](Vocabulary& v) { v.types[9] = 6; }, Code::kInvalidArgument,
                      "tokenizer.ggml.token_type[9]: expected 1 to 5, found 6"},
        BadVocabulary{"Utf8", [](Vocabulary& v) { v.tokens[4] = "\xFF"; }, Code::kInvalidArgument,
                      "tokenizer.ggml.tokens[4]: is not valid UTF-8"},
        BadVocabulary{"Twice", [](Vocabulary& v) { v.tokens[TinyByte('b')] = "a"; },
                      Code::kInvalidArgument,
                      "tokenizer.ggml.tokens[101]: is \"a\" like token 100"},
        BadVocabulary{"MergeShape", [](Vocabulary& v) { v.merges[1] = "ll"; },
                      Code::kInvalidArgument,
                      "tokenizer.ggml.merges[1]: expected two tokens and a space, found \"ll\""},
        BadVocabulary{"MergePart", [](Vocabulary& v) { v.merges[1] = "l zz"; },
                      Code::kInvalidArgument,
                      "tokenizer.ggml.merges[1]: \"zz\" is not a normal token"},
        BadVocabulary{
            "MergeToControl", [](Vocabulary& v) { v.types[IdOf(v, "hello")] = kTokenControl; },
            Code::kInvalidArgument, "tokenizer.ggml.merges[3]: \"hello\" is not a normal token"},
        BadVocabulary{"Bos", [](Vocabulary& v) { v.bos = 277; }, Code::kInvalidArgument,
                      "tokenizer.ggml.bos_token_id: expected an id below 277, found 277"},
        BadVocabulary{"Pre", [](Vocabulary& v) { v.pre = "qwen9"; }, Code::kInvalidArgument,
                      "tokenizer.ggml.pre: expected smollm, gpt-2 or llama-bpe, found \"qwen9\""}),
    [](const auto& test) { return test.param.name; });

// Quadratic work on any of these would take hours, and a match limit would fail them.
TEST(Tokenizer, LongRunsTakeNoLongerThanOtherText) {
  const size_t size = 1 << 18;
  for (const char* pre : {"smollm", "gpt-2", "llama-bpe"}) {
    const auto tokenizer = MakeTokenizer(TinyVocabulary(pre));
    for (const std::string unit : {"a", " ", "\n", "\t", "7", "!", "é", "字", "\u3000", " \n",
                                   "\r\n", "'s", "ab", "a ", "  x", "😀"}) {
      std::string text;
      while (text.size() < size) text += unit;
      for (const std::string& whole : {text, text + "x", "x\n" + text}) {
        ASSERT_TRUE(BytesOf(*tokenizer, Encode(*tokenizer, whole)) == whole) << pre << unit;
      }
    }
  }
}

TEST(Tokenizer, ThreadsShareIt) {
  const auto tokenizer = MakeTokenizer(TinyVocabulary());
  const std::string text = "hello the world's 12 héllo  \n\n";
  const std::vector<uint32_t> expected = Encode(*tokenizer, text);
  std::array<bool, 4> same{};
  std::vector<std::thread> threads;
  threads.reserve(same.size());
  for (bool& result : same) {
    threads.emplace_back([&] {
      result = true;
      for (int i = 0; i < 500; ++i) result &= *tokenizer->Encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(same, testing::Each(true));
}

TEST(Tokenizer, ReadsTheVocabularyOfARealModel) {
  const auto file = GgufFile::Open(CAIRN_MODEL_FILE);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto vocabulary = ReadVocabulary(**file);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().ToString();
  EXPECT_EQ(vocabulary->tokens.size(), 49152u);
  EXPECT_EQ(vocabulary->merges.size(), 48900u);
  EXPECT_EQ(vocabulary->pre, "smollm");
  EXPECT_EQ(vocabulary->bos, 1u);
  EXPECT_EQ(vocabulary->eos, 2u);
  EXPECT_FALSE(vocabulary->add_bos);
  EXPECT_THAT(vocabulary->chat_template, HasSubstr("<|im_start|>"));

  const auto tokenizer = MakeTokenizer(*vocabulary);
  EXPECT_THAT(tokenizer->end_ids(), ElementsAre(0, 2));
  const std::string text = "The cairn's 3 stones: größer, 石 and 🪨.\n";
  const std::vector<uint32_t> ids = Encode(*tokenizer, text);
  EXPECT_EQ(BytesOf(*tokenizer, ids), text);
  EXPECT_THAT(Encode(*tokenizer, "Hello world"),
              ElementsAre(IdOf(*vocabulary, "Hello"), IdOf(*vocabulary, "Ġworld")));
}

}  // namespace
}  // namespace cairn
