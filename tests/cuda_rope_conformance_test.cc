// RoPE and the writing of K and V by the CUDA kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "tests/cuda_conformance.h"

namespace cairn {
namespace {

struct RopeCase {
  uint32_t head_count, kv_head_count, head_dim, rotary_dim, block_tokens;
};
constexpr RopeCase kRopeCases[] = {{9, 3, 64, 64, 16}, {4, 4, 128, 96, 32}, {2, 1, 80, 20, 16},
                                   {3, 1, 8, 8, 16},   {1, 1, 12, 6, 64},   {2, 2, 64, 0, 16}};
constexpr uint32_t kRows = 7;
constexpr uint32_t kRowWithoutBlock = 5;
constexpr uint32_t kPositions = 200;
constexpr uint32_t kLayers = 3, kLayer = 1;
constexpr std::byte kUntouched{0x11};

class CudaRope : public CudaConformance {
 protected:
  // Each row writes a block of its own, so that no two rows meet.
  struct State {
    std::vector<float> q;
    std::vector<std::byte> blocks;
  };

  void Prepare(const RopeCase& c, Rng& rng) {
    layout_ = {kLayers, c.kv_head_count, c.head_dim, c.block_tokens, KvType::kF16, "test"};
    q_ = reference::RandomFloats(size_t{kRows} * c.head_count * c.head_dim, 1.0, rng);
    k_ = reference::RandomFloats(size_t{kRows} * c.kv_head_count * c.head_dim, 1.0, rng);
    v_ = reference::RandomFloats(k_.size(), 1.0, rng);
    v_[0] = 1e6f;  // beyond float16: becomes its largest finite value
    v_[1] = -1e6f;
    cos_sin_.clear();
    for (uint32_t i = 0; i < kPositions * c.rotary_dim / 2; ++i) {
      const double angle = 6.2 * rng.Uniform();
      cos_sin_.push_back(static_cast<float>(std::cos(angle)));
      cos_sin_.push_back(static_cast<float>(std::sin(angle)));
    }
    for (uint32_t& position : positions_) position = static_cast<uint32_t>(rng.Below(kPositions));
  }

  // All rows, `step` of them at a time.
  State Run(const RopeCase& c, uint32_t step) {
    Floats q(*this, q_), k(*this, k_), v(*this, v_), cos_sin(*this, cos_sin_);
    Array<std::byte> blocks(*this,
                            std::vector<std::byte>(kRows * layout_.block_bytes(), kUntouched));
    for (uint32_t begin = 0; begin < kRows; begin += step) {
      std::vector<BatchRow> rows;
      for (uint32_t row = begin; row < std::min(kRows, begin + step); ++row) {
        rows.push_back({.token = 0,
                        .position = positions_[row],
                        .block = row == kRowWithoutBlock
                                     ? nullptr
                                     : blocks.data(row * layout_.block_bytes())});
      }
      ops().RopeWriteKv({.q = q.data(begin * size_t{c.head_count} * c.head_dim),
                         .k = k.data(begin * size_t{c.kv_head_count} * c.head_dim),
                         .v = v.data(begin * size_t{c.kv_head_count} * c.head_dim),
                         .cos_sin = cos_sin.data(),
                         .batch = &SetBatch(rows),
                         .layout = &layout_,
                         .layer = kLayer,
                         .head_count = c.head_count,
                         .rotary_dim = c.rotary_dim,
                         .q_scale = 0.3f},
                        stream());
    }
    return {q.Read(), blocks.Read()};
  }

  std::span<const float> Angles(const RopeCase& c, uint32_t row) const {
    return std::span(cos_sin_).subspan(positions_[row] * size_t{c.rotary_dim}, c.rotary_dim);
  }
  void CheckQueries(const RopeCase& c, const State& state) const;
  void CheckBlocks(const RopeCase& c, State& state) const;

  KvLayout layout_;
  std::vector<float> q_, k_, v_, cos_sin_;
  uint32_t positions_[kRows] = {};
};

// A product, a fused product and sum, and the scale: 3 roundings of terms no larger than the pair.
void CudaRope::CheckQueries(const RopeCase& c, const State& state) const {
  for (size_t start = 0; start < q_.size(); start += c.head_dim) {
    const uint32_t row = static_cast<uint32_t>(start / (size_t{c.head_count} * c.head_dim));
    const auto head = std::span(q_).subspan(start, c.head_dim);
    const auto expected = reference::Rotate(head, Angles(c, row));
    for (uint32_t i = 0; i < c.head_dim; ++i) {
      const double pair = std::fabs(head[i]) + std::fabs(head[i ^ 1]);
      ASSERT_NEAR(state.q[start + i], 0.3f * expected[i], 3 * kUlp * pair) << row << " " << i;
    }
  }
}

// Checks and erases every element that was to be written; what is left must be untouched.
void CudaRope::CheckBlocks(const RopeCase& c, State& state) const {
  for (uint32_t row = 0; row < kRows; ++row) {
    if (row == kRowWithoutBlock) continue;
    std::byte* const block = &state.blocks[row * layout_.block_bytes()];
    const uint32_t token = positions_[row] % c.block_tokens;
    for (uint32_t head = 0; head < c.kv_head_count; ++head) {
      const size_t source = (size_t{row} * c.kv_head_count + head) * c.head_dim;
      const auto keys =
          reference::Rotate(std::span(k_).subspan(source, c.head_dim), Angles(c, row));
      for (uint32_t i = 0; i < c.head_dim; ++i) {
        std::byte* const key =
            block + layout_.key_offset(kLayer, head) + (i * c.block_tokens + token) * 2;
        std::byte* const value =
            block + layout_.value_offset(kLayer, head) + (token * c.head_dim + i) * 2;
        uint16_t bits;
        std::memcpy(&bits, key, 2);
        // Half a step of float16, and a little for the rounding before.
        ASSERT_NEAR(reference::HalfValue(bits), keys[i], std::fabs(keys[i]) * 0x1.02p-11 + 1e-6);
        std::memcpy(&bits, value, 2);
        ASSERT_EQ(bits, reference::NearestHalf(v_[source + i]));
        std::memset(key, static_cast<int>(kUntouched), 2);
        std::memset(value, static_cast<int>(kUntouched), 2);
      }
    }
  }
  EXPECT_TRUE(std::ranges::all_of(state.blocks, [](std::byte b) { return b == kUntouched; }));
}

TEST_P(CudaRope, MatchesTheReferenceAndIsRowLocal) {
  Rng rng(10);
  for (const RopeCase& c : kRopeCases) {
    SCOPED_TRACE(c.head_dim);
    Prepare(c, rng);
    State lone = Run(c, 1);
    const State batch = Run(c, kRows);
    EXPECT_TRUE(SameBits(batch.q, lone.q));
    EXPECT_TRUE(batch.blocks == lone.blocks);
    CheckQueries(c, lone);
    CheckBlocks(c, lone);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaRope,
                         testing::Combine(testing::ValuesIn(CudaMachines()),
                                          testing::Values(ComputeMode::kExact)),
                         MachineName);

}  // namespace
}  // namespace cairn
