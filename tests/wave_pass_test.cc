// One pass over rows with holes between them, whose blocks arrive layer by layer while it runs: the
// bytes and the logits are those of separate passes over what is in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/model.h"
#include "kernels/backend.h"
#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kContext = 512;
constexpr uint32_t kLayers = 4;
constexpr std::byte kUnwritten{0x33};  // finite as an f16

// Something that arrives when it is waited for, and not before.
class Arrival final : public Event {
 public:
  explicit Arrival(std::function<void()> arrive) : arrive_(std::move(arrive)) {}
  bool Passed() const override { return arrive_ == nullptr; }
  Status Wait() override {
    if (const auto arrive = std::exchange(arrive_, nullptr)) arrive();
    return Status();
  }

 private:
  std::function<void()> arrive_;
};

class WavePass : public testing::TestWithParam<uint32_t> {
 protected:
  WavePass() {
    WriteTinyModel(folder_.File("tiny.gguf"), {.layers = kLayers, .context_length = kContext});
    const auto checkpoint = Checkpoint::Open(folder_.File("tiny.gguf"));
    CHECK(checkpoint.ok());
    Result<Backend> backend = MakeCpuBackend({.thread_count = GetParam()});
    CHECK(backend.ok());
    const ModelLimits limits = {.context_length = kContext,
                                .block_tokens = kBlockTokens,
                                .rows_max = kContext,
                                .logits_max = 2};
    auto model = Model::Create(*checkpoint, *std::move(backend), limits, nullptr);
    CHECK(model.ok());
    model_ = *std::move(model);
  }
  const KvLayout& layout() const { return model_->kv_layout(); }

  // Whole blocks of a context, in one piece of memory.
  struct Blocks {
    std::vector<std::byte> bytes;
    size_t layer_bytes;
    std::vector<std::byte*> table;

    std::byte* Slice(size_t block, uint32_t layer) const {
      return table[block] + layer * layer_bytes;
    }
    bool HasSlice(size_t block, uint32_t layer, const Blocks& of) const {
      return std::memcmp(Slice(block, layer), of.Slice(block, layer), layer_bytes) == 0;
    }
  };
  Blocks MakeBlocks(size_t count, std::byte fill) const {
    Blocks blocks{.bytes = std::vector<std::byte>(count * layout().block_bytes(), fill),
                  .layer_bytes = layout().layer_bytes()};
    for (size_t i = 0; i < count; ++i) {
      blocks.table.push_back(blocks.bytes.data() + i * layout().block_bytes());
    }
    return blocks;
  }
  std::vector<float> Forward(std::span<const BatchSegment> segments,
                             std::span<const EventRef> arrivals = {}) {
    LayerArrivals by_layer;
    if (!arrivals.empty()) by_layer = [&](uint32_t layer) { return arrivals[layer]; };
    const auto rows = model_->Forward(segments, by_layer);
    EXPECT_TRUE(rows.ok()) << rows.status().ToString();
    std::vector<float> logits;
    for (const RowLogits& row : *rows) logits.insert(logits.end(), row.all.begin(), row.all.end());
    return logits;
  }

  // By layer: when it is waited for, `on_wait` hears of it, and these blocks get their slices.
  static std::vector<EventRef> ArrivalsOf(Blocks& blocks, const std::vector<size_t>& arriving,
                                          const Blocks& from,
                                          const std::function<void(uint32_t layer)>& on_wait) {
    std::vector<EventRef> arrivals;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      arrivals.push_back(std::make_shared<Arrival>([&, on_wait, layer] {
        on_wait(layer);
        for (const size_t block : arriving) {
          std::memcpy(blocks.Slice(block, layer), from.Slice(block, layer), from.layer_bytes);
        }
      }));
    }
    return arrivals;
  }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_;
};

TEST_P(WavePass, WhatArrivesLayerByLayerGivesTheBytesOfSeparatePasses) {
  Rng rng(GetParam());
  int checked_layers = 0;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const size_t block_count = 2 + rng.Below(12);
    const size_t last_tokens = rng.Chance(0.5) ? kBlockTokens : 1 + rng.Below(kBlockTokens);
    std::vector<uint32_t> tokens((block_count - 1) * kBlockTokens + last_tokens);
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.Below(320));
    Blocks expected = MakeBlocks(block_count, std::byte{0});
    const BatchSegment whole = {
        .tokens = tokens, .blocks = expected.table.data(), .want_logits = true};
    const std::vector<float> expected_logits = Forward({&whole, 1});

    // Blocks that arrive, between such that are computed, the last one in any case. Of some of
    // these the beginning is in place.
    Blocks blocks = MakeBlocks(block_count, kUnwritten);
    std::vector<size_t> arriving;
    std::vector<BatchSegment> segments;
    for (size_t block = 0; block < block_count; ++block) {
      if (block + 1 < block_count && rng.Chance(0.5)) {
        arriving.push_back(block);
        continue;
      }
      const size_t begin = block * kBlockTokens;
      const size_t end = std::min(begin + kBlockTokens, tokens.size());
      const size_t first = rng.Chance(0.8) ? begin : begin + rng.Below(end - begin);
      if (first > begin) {
        std::memcpy(blocks.table[block], expected.table[block], layout().block_bytes());
      }
      segments.push_back({.tokens = std::span(tokens).subspan(first, end - first),
                          .first_position = static_cast<uint32_t>(first),
                          .blocks = blocks.table.data()});
    }
    segments.back().want_logits = rng.Chance(0.7);
    const bool fills_last =
        segments.back().first_position % kBlockTokens == 0 && last_tokens == kBlockTokens;

    const auto before = [&](uint32_t layer) {
      if (!fills_last) return;
      ++checked_layers;
      EXPECT_TRUE(blocks.HasSlice(block_count - 1, layer, expected)) << "written before it waits";
      if (layer + 1 < kLayers) {
        EXPECT_FALSE(blocks.HasSlice(block_count - 1, layer + 1, expected));
      }
    };
    uint32_t arrived = 0;
    const std::vector<EventRef> arrivals =
        ArrivalsOf(blocks, arriving, expected, [&](uint32_t layer) {
          EXPECT_EQ(arrived++, layer);
          before(layer);
        });
    const std::vector<float> logits = Forward(segments, arrivals);
    EXPECT_EQ(arrived, kLayers) << "the last layer's too, though nobody may attend to it";
    if (segments.back().want_logits) {
      EXPECT_EQ(logits, expected_logits);
    }
    const size_t full_bytes = tokens.size() / kBlockTokens * layout().block_bytes();
    EXPECT_EQ(std::memcmp(blocks.bytes.data(), expected.bytes.data(), full_bytes), 0);
  }
  EXPECT_GT(checked_layers, 10);
}

INSTANTIATE_TEST_SUITE_P(Threads, WavePass, testing::Values(1, 2));

// The pass of another sequence that shares it is what it is alone.
TEST_P(WavePass, OthersInThePassAreNotChanged) {
  std::vector<uint32_t> tokens(3 * kBlockTokens);
  std::iota(tokens.begin(), tokens.end(), 5u);
  Blocks expected = MakeBlocks(3, std::byte{0});
  const BatchSegment whole = {
      .tokens = tokens, .blocks = expected.table.data(), .want_logits = true};
  const std::vector<float> expected_logits = Forward({&whole, 1});
  Blocks blocks = MakeBlocks(3, kUnwritten);
  Blocks other = MakeBlocks(3, std::byte{0});
  const std::vector<BatchSegment> segments = {
      {.tokens = std::span(tokens).subspan(2 * kBlockTokens),
       .first_position = 2 * kBlockTokens,
       .blocks = blocks.table.data(),
       .want_logits = true},
      {.tokens = tokens, .blocks = other.table.data(), .want_logits = true}};
  const std::vector<size_t> arriving = {0, 1};
  const std::vector<EventRef> arrivals = ArrivalsOf(blocks, arriving, expected, [](uint32_t) {});
  const std::vector<float> logits = Forward(segments, arrivals);
  const size_t vocabulary = expected_logits.size();
  ASSERT_EQ(logits.size(), 2 * vocabulary);
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + static_cast<long>(vocabulary),
                         expected_logits.begin()));
  EXPECT_TRUE(std::equal(logits.begin() + static_cast<long>(vocabulary), logits.end(),
                         expected_logits.begin()));
  EXPECT_EQ(blocks.bytes, expected.bytes);
  EXPECT_EQ(other.bytes, expected.bytes);
}

}  // namespace
}  // namespace cairn
