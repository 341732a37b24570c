// The names of blocks: what they depend on, and their values, which outlive the process.
#include "offload/block_key.h"

#include <gtest/gtest.h>

#include <array>
#include <unordered_set>
#include <vector>

#include "base/rng.h"

namespace cairn {
namespace {

const Digest kFingerprint{0x0123456789abcdef, 0xfedcba9876543210};
constexpr const char* kLayout = "L30.H3.D64.T16.f16.kdt.cpu-avx2-exact";

TEST(BlockKey, RootDependsOnWeightsLayoutAndTenant) {
  const BlockKey root = RootKey(kFingerprint, kLayout, "tenant");
  EXPECT_EQ(root, RootKey(kFingerprint, kLayout, "tenant"));
  EXPECT_NE(root, RootKey({kFingerprint.high, kFingerprint.low + 1}, kLayout, "tenant"));
  EXPECT_NE(root, RootKey({kFingerprint.high + 1, kFingerprint.low}, kLayout, "tenant"));
  EXPECT_NE(root, RootKey(kFingerprint, "L30.H3.D64.T16.f16.kdt.cpu-avx2-fast", "tenant"));
  EXPECT_NE(root, RootKey(kFingerprint, kLayout, "tenant2"));
  EXPECT_NE(root, RootKey(kFingerprint, kLayout, ""));
}

TEST(BlockKey, RootKeepsItsTextsApart) {
  EXPECT_NE(RootKey(kFingerprint, "ab", "c"), RootKey(kFingerprint, "a", "bc"));
  EXPECT_NE(RootKey(kFingerprint, "ab", ""), RootKey(kFingerprint, "", "ab"));
}

TEST(BlockKey, ChildDependsOnEveryTokenItsPlaceAndTheParent) {
  const BlockKey root = RootKey(kFingerprint, kLayout, "");
  std::array<uint32_t, 16> tokens{};
  for (uint32_t i = 0; i < 16; ++i) tokens[i] = i * 3000;
  const BlockKey child = ChildKey(root, tokens);
  EXPECT_EQ(child, ChildKey(root, tokens));
  EXPECT_NE(child, ChildKey(child, tokens));
  for (uint32_t i = 0; i < 16; ++i) {
    auto changed = tokens;
    changed[i] ^= 1;
    EXPECT_NE(child, ChildKey(root, changed)) << i;
  }
  std::swap(tokens[3], tokens[4]);
  EXPECT_NE(child, ChildKey(root, tokens));
}

TEST(BlockKey, ChildDependsOnTheNumberOfTokens) {
  const std::vector<uint32_t> zeros(kBlockTokensMax, 0);
  std::unordered_set<BlockKey> keys;
  for (size_t count = 0; count <= zeros.size(); ++count) {
    EXPECT_TRUE(keys.insert(ChildKey({}, std::span(zeros).first(count))).second) << count;
  }
}

TEST(BlockKey, ChainsOfSmallTokensDoNotMeet) {
  std::unordered_set<BlockKey> keys;
  Rng rng(1);
  for (int chain = 0; chain < 200; ++chain) {
    BlockKey key = RootKey(kFingerprint, kLayout, std::to_string(chain));
    ASSERT_TRUE(keys.insert(key).second);
    for (int block = 0; block < 500; ++block) {
      std::array<uint32_t, 16> tokens;
      for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.Below(2));
      key = ChildKey(key, tokens);
      ASSERT_TRUE(keys.insert(key).second);
    }
  }
}

// Blocks on disk are found by key after a restart, so a key may not change from build to build.
TEST(BlockKey, ValuesAreForGood) {
  const BlockKey root = RootKey(kFingerprint, kLayout, "tenant");
  EXPECT_EQ(root.digest.ToHex(), "eb0bd14d9b301d951ea22e235bede526");
  const std::array<uint32_t, 16> tokens{1,     198,  2,   520, 9531, 0,    7, 49151,
                                        28120, 1000, 314, 15,  926,  5358, 9, 42};
  EXPECT_EQ(ChildKey(root, tokens).digest.ToHex(), "e6af4c527f1b1bc5d8d3cc0905a0435e");
}

TEST(BlockKeyDeathTest, RefusesMoreTokensThanABlockHas) {
  const std::vector<uint32_t> tokens(kBlockTokensMax + 1, 0);
  EXPECT_DEATH(ChildKey({}, tokens), "kBlockTokensMax");
}

}  // namespace
}  // namespace cairn
