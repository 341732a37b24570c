// What bringing a block back costs, and which blocks are worth writing: arithmetic.
#include "offload/block_prices.h"

#include <gtest/gtest.h>

#include <limits>

namespace cairn {
namespace {

constexpr BlockPrices kPrices{.recompute = RecomputePrice{.block_s = 0.010, .position_s = 1e-5},
                              .host_s = 0.0001,
                              .disk_s = 0.020,
                              .write_s = 0.015};

TEST(BlockPrices, LaterBlocksCostMoreToCompute) {
  EXPECT_DOUBLE_EQ(kPrices.Recompute(0), 0.010);
  EXPECT_DOUBLE_EQ(kPrices.Recompute(1000), 0.020);
}

TEST(BlockPrices, ABlockIsBroughtBackByLoadingAndComputingTogether) {
  EXPECT_EQ(kPrices.BringBack(Origin::kResident, 1000), 0);
  EXPECT_DOUBLE_EQ(kPrices.BringBack(Origin::kAbsent, 1000), 0.020);
  EXPECT_DOUBLE_EQ(kPrices.BringBack(Origin::kDisk, 1000), 0.010);  // equal prices: half
  EXPECT_NEAR(kPrices.BringBack(Origin::kHost, 1000), 0.0001, 1e-6);
}

TEST(BlockPrices, WhatWasNotMeasuredHasANominalPrice) {
  const BlockPrices none;
  EXPECT_DOUBLE_EQ(none.Recompute(4096), 2 * none.Recompute(0));
  const double computed = none.BringBack(Origin::kAbsent, 0);
  EXPECT_NEAR(none.BringBack(Origin::kDisk, 0), computed / 17, 1e-12);
  EXPECT_EQ(none.FirstWorthWriting(), 0u);
}

TEST(BlockPrices, BlocksAreWorthWritingFromAPositionOn) {
  EXPECT_EQ(kPrices.FirstWorthWriting(), 500u);
  BlockPrices prices = kPrices;
  prices.write_s = 0.010;
  EXPECT_EQ(prices.FirstWorthWriting(), 0u);
  prices.write_s = 1e9;
  EXPECT_EQ(prices.FirstWorthWriting(), std::numeric_limits<uint32_t>::max());
  prices.recompute->position_s = 0;
  prices.write_s = 0.011;
  EXPECT_EQ(prices.FirstWorthWriting(), std::numeric_limits<uint32_t>::max());
  prices.recompute.reset();  // nothing is known to be cheap
  EXPECT_EQ(prices.FirstWorthWriting(), 0u);
}

TEST(BlockPrices, ComputingIsPricedInPassesOfAChunk) {
  const PassCosts pass{
      .pass_s = 0.001, .sweep_s = 0.004, .token_s = 1e-4, .token_position_s = 1e-8};
  const RecomputePrice full = RecomputePriceOf(pass, 160, 16);  // 0.001 + 0.016 for ten blocks
  EXPECT_DOUBLE_EQ(full.block_s, 0.0017 + 1e-8 * 120);
  EXPECT_DOUBLE_EQ(full.position_s, 16e-8);
  const RecomputePrice one = RecomputePriceOf(pass, 16, 16);  // a sweep of its own
  EXPECT_DOUBLE_EQ(one.block_s, 0.005 + 1e-8 * 120);
}

}  // namespace
}  // namespace cairn
