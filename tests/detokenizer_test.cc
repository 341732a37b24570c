#include "engine/detokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/tokenizer.h"
#include "tests/fakes/tiny_vocabulary.h"

namespace cairn {
namespace {

class DetokenizerTest : public testing::Test {
 protected:
  static std::vector<uint32_t> Bytes(std::string_view bytes) {
    std::vector<uint32_t> ids;
    for (const char byte : bytes) ids.push_back(TinyByte(static_cast<uint8_t>(byte)));
    return ids;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Create(TinyVocabulary());
};

TEST_F(DetokenizerTest, HoldsBackWhatIsNotACharacterYet) {
  Detokenizer detokenizer(*tokenizer_);
  EXPECT_EQ(detokenizer.Push(TinyByte('a')), "a");
  EXPECT_EQ(detokenizer.Push(TinyByte(0xF0)), "");
  EXPECT_EQ(detokenizer.Push(TinyByte(0x9F)), "");
  EXPECT_EQ(detokenizer.Push(kTinyImEnd), "");  // no bytes, no text
  EXPECT_EQ(detokenizer.Push(TinyByte(0x98)), "");
  EXPECT_EQ(detokenizer.Push(TinyByte(0x80)), "😀");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST_F(DetokenizerTest, ReplacesWhatCanBeNoCharacter) {
  Detokenizer detokenizer(*tokenizer_);
  EXPECT_EQ(detokenizer.Push(TinyByte(0xE2)), "");
  EXPECT_EQ(detokenizer.Push(TinyByte('x')), "\uFFFDx");
  EXPECT_EQ(detokenizer.Push(TinyByte(0x80)), "\uFFFD");
  EXPECT_EQ(detokenizer.PushBytes("\xE2\x82"), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
  // The example of the Unicode Standard, table 3-11 of chapter 3.9.
  EXPECT_EQ(Detokenize(*tokenizer_, Bytes("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64")),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  // Table 3-8: overlong forms; 3-9: surrogates.
  EXPECT_EQ(Detokenize(*tokenizer_, Bytes("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41")),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(Detokenize(*tokenizer_, Bytes("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41")),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
}

// Bytes that begin, continue, end or break characters, with control tokens between them.
std::vector<uint32_t> RandomIds(Rng& rng) {
  constexpr uint8_t kBytes[] = {'a', 0x80, 0x9F, 0xBF, 0xC3, 0xE2, 0xED, 0xF0, 0xF4, 0xFF, 0x98};
  std::vector<uint32_t> ids(rng.Below(12));
  for (uint32_t& id : ids) {
    id = rng.Chance(0.2) ? kTinyEndOfText : TinyByte(kBytes[rng.Below(std::size(kBytes))]);
  }
  return ids;
}

TEST_F(DetokenizerTest, ResumesInsideACharacter) {
  Rng rng(11);
  for (int round = 0; round < 20000; ++round) {
    const std::vector<uint32_t> ids = RandomIds(rng);
    const std::string whole = Detokenize(*tokenizer_, ids);
    for (size_t cut = 0; cut <= ids.size(); ++cut) {
      Detokenizer before(*tokenizer_), after(*tokenizer_);
      std::string text;
      for (size_t i = 0; i < cut; ++i) text += before.Push(ids[i]);
      after.Prime(std::span(ids).first(cut));
      for (size_t i = cut; i < ids.size(); ++i) text += after.Push(ids[i]);
      ASSERT_EQ(text + after.Flush(), whole);
    }
  }
}

}  // namespace
}  // namespace cairn
