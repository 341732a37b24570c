#include "engine/vocabulary.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/gguf_file.h"
#include "tests/fakes/gguf_writer.h"

namespace cairn {
namespace {

Result<Vocabulary> Read(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "tiny.gguf");
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  return ReadVocabulary(**file);
}

class VocabularyTest : public testing::Test {
 protected:
  void ExpectError(Code code, const std::string& message) {
    const Status status = Read(writer_).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), message);
  }

  GgufWriter writer_ = TinyModel({});
};

TEST_F(VocabularyTest, HasWhatTheFileSays) {
  writer_.SetU32("tokenizer.ggml.eot_token_id", 0);
  const Result<Vocabulary> vocabulary = Read(writer_);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().ToString();
  EXPECT_EQ(vocabulary->model, "gpt2");
  EXPECT_EQ(vocabulary->pre, "smollm");
  EXPECT_EQ(vocabulary->tokens.size(), 320u);
  EXPECT_EQ(vocabulary->tokens[2], "<|im_end|>");
  EXPECT_EQ(vocabulary->types.size(), 320u);
  EXPECT_EQ(vocabulary->types[2], kTokenControl);
  EXPECT_EQ(vocabulary->merges.size(), 320u - 259u);
  EXPECT_EQ(vocabulary->bos, 1u);
  EXPECT_EQ(vocabulary->eos, 2u);
  EXPECT_EQ(vocabulary->eot, 0u);
  EXPECT_FALSE(vocabulary->add_bos);
  EXPECT_NE(vocabulary->chat_template.find("<|im_start|>"), std::string::npos);
}

TEST_F(VocabularyTest, MostOfItMayBeAbsent) {
  for (const char* key :
       {"pre", "token_type", "merges", "bos_token_id", "eos_token_id", "add_bos_token"}) {
    writer_.Remove("tokenizer.ggml." + std::string(key));
  }
  writer_.Remove("tokenizer.chat_template");
  const Result<Vocabulary> vocabulary = Read(writer_);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().ToString();
  EXPECT_EQ(vocabulary->pre, "");
  EXPECT_TRUE(vocabulary->types.empty());
  EXPECT_TRUE(vocabulary->merges.empty());
  EXPECT_EQ(vocabulary->bos, std::nullopt);
  EXPECT_EQ(vocabulary->eos, std::nullopt);
  EXPECT_EQ(vocabulary->eot, std::nullopt);
  EXPECT_FALSE(vocabulary->add_bos);
  EXPECT_EQ(vocabulary->chat_template, "");
}

TEST_F(VocabularyTest, Llama3PromptsStartWithBosUnlessTheFileSaysNo) {
  writer_ = TinyModel({.pre = "llama-bpe"});
  EXPECT_FALSE(Read(writer_)->add_bos);
  writer_.Remove("tokenizer.ggml.add_bos_token");
  EXPECT_TRUE(Read(writer_)->add_bos);
}

TEST_F(VocabularyTest, NeedsModelAndTokens) {
  writer_.Remove("tokenizer.ggml.tokens");
  ExpectError(Code::kNotFound, "tiny.gguf: key 'tokenizer.ggml.tokens' is missing");
  writer_.Remove("tokenizer.ggml.model");
  ExpectError(Code::kNotFound, "tiny.gguf: key 'tokenizer.ggml.model' is missing");
}

TEST_F(VocabularyTest, ChecksCountsAndIds) {
  writer_.Remove("tokenizer.ggml.token_type");
  const int32_t types[] = {1, 1, 1};
  writer_.SetI32s("tokenizer.ggml.token_type", types);
  ExpectError(Code::kInvalidArgument,
              "tiny.gguf: tokenizer.ggml.token_type: expected 320 entries, found 3");
  writer_.Remove("tokenizer.ggml.token_type");
  for (const char* name : {"eot_token_id", "eos_token_id", "bos_token_id"}) {
    const std::string key = "tokenizer.ggml." + std::string(name);
    if (key != "tokenizer.ggml.eot_token_id") writer_.Remove(key);
    writer_.SetU32(key, 320);
    ExpectError(Code::kInvalidArgument,
                "tiny.gguf: " + key + ": expected an id below 320, found 320");
  }
}

TEST_F(VocabularyTest, ChecksKinds) {
  writer_.Remove("tokenizer.ggml.merges");
  writer_.SetU32("tokenizer.ggml.merges", 7);
  const Status status = Read(writer_).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("tokenizer.ggml.merges"), std::string::npos);
}

}  // namespace
}  // namespace cairn
