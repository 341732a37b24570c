#include "engine/what_if.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/rng.h"

namespace cairn {
namespace {

constexpr std::string_view kProblem =
    R"({"block_tokens":4,"block_bytes":100,"layers":10,"new_tokens":0,"pass_s":0,"sweep_s":0,)"
    R"("per_token_s":0.25,"per_token_position_s":0,"chunk_tokens":4,)"
    R"("channels":{"h":{"latency_s":0,"per_copy_s":1,"bytes_per_s":100}},)"
    R"("executions":["front"],"blocks":"hhhhhh"})";

// The problem with one part of it replaced.
std::string With(std::string_view part, std::string_view by) {
  std::string text(kProblem);
  const size_t at = text.find(part);
  CHECK(at != std::string::npos);
  return text.replace(at, part.size(), by);
}

std::string Answer(std::string_view part, std::string_view by) {
  return AnswerWhatIf(With(part, by));
}

TEST(WhatIfTest, AnswersWithThePlan) {
  EXPECT_EQ(AnswerWhatIf(kProblem),
            R"({"execution":"front","recompute":[0,1,2,3],"load_order":{"h":[4,5]},)"
            R"("predicted_s":4.0,"load_all_s":12.0,"recompute_all_s":6.0})");
  EXPECT_EQ(Answer("hhhhhh", ".hh-"),
            R"({"execution":"recompute_all","recompute":[1,2,3],"load_order":{"h":[]},)"
            R"("predicted_s":3.0,"load_all_s":5.0,"recompute_all_s":3.0})");
  EXPECT_EQ(Answer("hhhhhh", ""), R"({"execution":"none","recompute":[],"load_order":{"h":[]},)"
                                  R"("predicted_s":0.0,"load_all_s":0.0,"recompute_all_s":0.0})");
}

TEST(WhatIfTest, TakesWhatIsOptional) {
  EXPECT_NE(Answer("\"latency_s\":0", "\"latency_s\":0,\"backlog_s\":2").find(R"("h":[5])"),
            std::string::npos);
  EXPECT_NE(Answer("{\"block_tokens\"", "{\"compute_backlog_s\":3,\"block_tokens\"")
                .find(R"("recompute":[0,1,2])"),
            std::string::npos);
  EXPECT_NE(Answer("{\"block_tokens\"", "{\"policy\":\"load_all\",\"block_tokens\"")
                .find(R"("execution":"load_all")"),
            std::string::npos);
  EXPECT_NE(Answer("{\"block_tokens\"", "{\"decode_rows\":4,\"block_tokens\"")
                .find(R"("recompute_all_s":12.0)"),
            std::string::npos);
  EXPECT_NE(Answer("\"executions\":[\"front\"]", R"("policy":"wave")")
                .find(R"({"execution":"wave","recompute":)"),
            std::string::npos);
  // As in restore_planner_test: wave, if it may compute so much and the blocks come by layer.
  const auto wave = [](const std::string& channel, const std::string& problem) {
    return AnswerWhatIf(R"({"block_tokens":4,"block_bytes":100,"layers":10,"new_tokens":4,)"
                        R"("pass_s":0,"sweep_s":0,"per_token_s":0.25,"per_token_position_s":0,)"
                        R"("chunk_tokens":4,"executions":["wave"],"blocks":"hh",)" +
                        problem + R"("channels":{"h":{"latency_s":0,"per_copy_s":1,)" + channel +
                        R"("bytes_per_s":1e18}}})");
  };
  EXPECT_NE(wave("", "").find(R"("execution":"wave")"), std::string::npos);
  EXPECT_NE(wave("\"comes_whole\":false,", "\"wave_tokens_max\":8,").find(R"("predicted_s":2.1)"),
            std::string::npos);
  EXPECT_NE(wave("\"comes_whole\":true,", "").find(R"("predicted_s":3.0)"), std::string::npos);
  EXPECT_NE(wave("", "\"wave_tokens_max\":2,").find(R"("predicted_s":2.55)"), std::string::npos);
  EXPECT_NE(wave("", "\"wave_tokens_max\":0,").find("wave_tokens_max: expected a number from 1"),
            std::string::npos);
  EXPECT_NE(wave("\"comes_whole\":1,", "").find("channels.h.comes_whole: expected true or false"),
            std::string::npos);
  // 12 s is within 1 of 6 s by as much as 6 s.
  EXPECT_NE(Answer("{\"block_tokens\":4,\"block_bytes\":100",
                   "{\"uncertainty\":1,\"block_tokens\":4,\"block_bytes\":10")
                .find(R"("execution":"load_all")"),
            std::string::npos);
}

TEST(WhatIfTest, SaysWhatIsWrong) {
  const auto error = [](const std::string& text) { return "{\"error\":\"" + text + "\"}"; };
  EXPECT_EQ(AnswerWhatIf(""), error("line: expected a JSON object, got an empty line"));
  EXPECT_EQ(AnswerWhatIf(" \r"), error("line: expected a JSON object, got an empty line"));
  EXPECT_EQ(AnswerWhatIf("7"), error("line: expected a JSON object, got 7"));
  EXPECT_EQ(Answer("\"layers\":10", "\"layers\":0"),
            error("layers: expected a number from 1 to 65536, got 0"));
  EXPECT_EQ(Answer("\"layers\":10", "\"layers\":2.5"),
            error("layers: expected a whole number, got 2.5"));
  EXPECT_EQ(Answer("\"layers\":10,", ""),
            error("layers: expected a number from 1 to 65536, got nothing"));
  EXPECT_EQ(Answer("\"layers\":10", "\"layers\":\"10\""),
            error(R"(layers: expected a number from 1 to 65536, got \"10\")"));
  EXPECT_EQ(Answer("\"layers\":10", "\"layers\":10,\"layers\":11"),
            error("layers: expected once, got twice"));
  EXPECT_EQ(Answer("\"pass_s\":0", "\"pass_s\":-1e-9"),
            error("pass_s: expected a number from 0 to 1000000000.0, got -1e-09"));
  EXPECT_EQ(Answer("\"bytes_per_s\":100", "\"bytes_per_s\":0"),
            error("channels.h.bytes_per_s: expected a number above 0 to 1e+18, got 0"));
  EXPECT_EQ(Answer("\"chunk_tokens\":4", "\"chunk_tokens\":3"),
            error("chunk_tokens: expected at least block_tokens, got 3"));
  EXPECT_EQ(Answer("hhhhhh", "hhxh"),
            error(R"(blocks[2]: expected one of \".\", \"-\", \"h\", got \"x\")"));
  EXPECT_EQ(Answer("\"latency_s\":0", "\"latency_s\":0,\"then\":\"d\""),
            error(R"(channels.h.then: expected one of \"h\", got \"d\")"));
  EXPECT_EQ(Answer("\"latency_s\":0", "\"latency_s\":0,\"then\":\"h\""),
            error("channels.h.then: expected a way that ends, got one that comes back to itself"));
  EXPECT_EQ(Answer("\"h\":{", "\".\":{"),
            error("channels..: expected one ASCII letter but . and -, and an object, got "
                  R"({\"latency_s\":0,\"per_copy_s\":1,\"bytes_per...)"));
  EXPECT_EQ(Answer("\"layers\"", "\"layer\""),
            error("layers: expected a number from 1 to 65536, got nothing"));
  EXPECT_EQ(Answer("\"executions\":[\"front\"]", "\"executions\":[\"side\"]"),
            error(R"(executions: expected a list of \"front\" and \"wave\", got [\"side\"])"));
  EXPECT_EQ(
      Answer("\"executions\":[\"front\"]", "\"policy\":\"best\""),
      error(
          "policy: expected cairn, load_all, recompute_all, greedy, threshold, cake, cut or wave, "
          R"(got \"best\")"));
  EXPECT_EQ(Answer("\"executions\":[\"front\"]", R"("policy":"wave","executions":["front"])"),
            error(R"(executions: expected \"wave\", which the policy uses, got [\"front\"])"));
  EXPECT_EQ(Answer("\"executions\":[\"front\"]", R"("policy":"cut","executions":["wave"])"),
            error(R"(executions: expected \"front\", which the policy uses, got [\"wave\"])"));
  EXPECT_NE(Answer("\"executions\"", "\"execution\"").find("execution: unknown; expected one of "),
            std::string::npos);
  EXPECT_NE(Answer("\"per_copy_s\":1", "\"per_copy_s\":1,\"speed\":1").find("channels.h.speed: "),
            std::string::npos);
  EXPECT_NE(Answer("\"pass_s\":0", "\"pass_s\":NaN").find("{\"error\":\"line: "),
            std::string::npos);
  EXPECT_NE(Answer("\"pass_s\":0", "\"pass_s\":1e999").find("{\"error\":\"line: "),
            std::string::npos);
  EXPECT_EQ(AnswerWhatIf(std::string(kWhatIfBytesMax + 1, ' ')),
            error("line: expected at most 4194304 bytes, got more"));
  EXPECT_EQ(Answer("hhhhhh", std::string(kWhatIfBlocksMax + 1, 'h')),
            error("blocks: expected at most 1048576 blocks, got 1048577"));
}

// Whatever a line holds, there is one answer in one line.
TEST(WhatIfTest, SurvivesDamage) {
  Rng rng(1);
  constexpr std::string_view kPieces[] = {
      "{",    "}",    "[",       "]",     ",",
      ":",    "\"",   "-",       "1e308", "0",
      "null", "\xff", "\\u0000", "hd",    "9999999999999999999"};
  int plans = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text(kProblem);
    for (uint64_t n = 1 + rng.Below(3); n > 0; --n) {
      const size_t at = rng.Below(text.size());
      const std::string_view piece = kPieces[rng.Below(std::size(kPieces))];
      text.replace(at, rng.Below(3), piece);
    }
    const std::string answer = AnswerWhatIf(text);
    EXPECT_EQ(answer.find('\n'), std::string::npos);
    const bool is_plan = answer.starts_with("{\"execution\":");
    plans += is_plan;
    EXPECT_TRUE(is_plan || answer.starts_with("{\"error\":\"")) << answer;
  }
  EXPECT_GT(plans, 0);
}

}  // namespace
}  // namespace cairn
