// Blocks that move between the memory of an emulated GPU and the host's: on streams of their own,
// many in one call, and ordered by events where nothing else orders them. The emulator reports a
// slot that one stream uses while another's use of it is not known to be over.
#include <cuemu/emulator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/cuda/block_copies.h"
#include "kernels/cuda/copy_batch.h"
#include "kernels/cuda/cuda_device.h"
#include "offload/block_store.h"
#include "tests/cuda_emu/test_device.h"
#include "tests/fakes/fake_clock.h"

namespace cairn {
namespace {

using Tokens = std::vector<uint32_t>;

constexpr uint32_t kBlockTokens = 16;
constexpr KvLayout kLayout = {.layer_count = 2, .kv_head_count = 1, .head_dim = 8};

class CudaBlockMoves : public testing::Test {
 protected:
  CudaBlockMoves() {
    device_ = *cuda::MakeCudaDevice();
    compute_ = *device_->NewStream(StreamUse::kCompute);
    store_ = *BlockStore::Create({.device_blocks_max = 32, .host_blocks_max = 32}, layout_,
                                 *device_, clock_);
    host_ = *device_->AllocateHost(layout_.block_bytes());
  }

  // `count` blocks, each full of its number from `first_byte` on.
  void Fill(const Tokens& tokens, uint8_t first_byte) {
    BlockKey parent = root_;
    for (size_t i = 0; i < tokens.size() / kBlockTokens; ++i) {
      Hold hold = std::move(store_->Reserve(1)->front());
      std::memset(host_->data(), first_byte + static_cast<int>(i), layout_.block_bytes());
      compute_->Copy(hold.writable_address(), host_->data(), layout_.block_bytes());
      EXPECT_TRUE(compute_->Synchronize().ok());
      hold = store_->Seal(std::move(hold), parent, Block(tokens, i), kPriorityDefault);
      parent = hold.key();
    }
  }
  void Suspend(const Tokens& tokens) {
    bool is_there = false;
    store_->Suspend(root_, tokens, Tier::kHost, [&] { is_there = true; });
    while (!is_there) store_->Poll();
  }
  std::vector<Hold> Load(const Tokens& tokens) {
    std::vector<Hold> holds = store_->Match(root_, tokens, kPriorityDefault);
    store_->OrderLoads();
    return holds;
  }
  // Whether the block is full of this byte.
  bool Has(const Hold& hold, uint8_t byte) {
    compute_->Wait(hold.ready());
    compute_->Copy(host_->data(), hold.address(), layout_.block_bytes());
    EXPECT_TRUE(compute_->Synchronize().ok());
    const std::vector<std::byte> expected(layout_.block_bytes(), std::byte{byte});
    return std::memcmp(host_->data(), expected.data(), expected.size()) == 0;
  }
  static std::span<const uint32_t> Block(const Tokens& tokens, size_t i) {
    return std::span(tokens).subspan(i * kBlockTokens, kBlockTokens);
  }
  static Tokens Numbered(uint32_t first, size_t block_count) {
    Tokens tokens(block_count * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }

  const cuemu::TestMachine machine_{{.jitter_us_max = 100}};
  const KvLayout layout_ = kLayout;
  const BlockKey root_ = RootKey({1, 2}, "layout", "");
  const FakeClock clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Buffer> host_;
  std::unique_ptr<BlockStore> store_;
};

// What a block begins with is copied on the compute stream, which nobody has waited for when the
// block leaves.
TEST_F(CudaBlockMoves, ABlockLeavesAfterTheCopyThatBeganIt) {
  const Tokens tokens = Numbered(0, 1);
  Fill(tokens, 7);
  Tokens others = tokens;
  others.back() = 1000;
  std::optional<PartialBlock> copied = store_->CopyPrefix(root_, others, *compute_);
  ASSERT_TRUE(copied.has_value());
  EXPECT_EQ(copied->token_count, kBlockTokens - 1);
  (void)store_->Seal(std::move(copied->block), root_, others, kPriorityDefault);
  Suspend(others);
  const std::vector<Hold> loaded = Load(others);
  ASSERT_EQ(loaded.size(), 1u);
  while (loaded[0].is_loading()) store_->Poll();
  EXPECT_TRUE(Has(loaded[0], 7));
}

// Both ways at once, and again and again through the same slots.
TEST_F(CudaBlockMoves, LoadsAndDemotionsGoSideBySideInBatches) {
  constexpr size_t kCount = 12;
  const Tokens contexts[] = {Numbered(0, kCount), Numbered(5000, kCount)};
  Fill(contexts[0], 10);
  Fill(contexts[1], 50);
  Suspend(contexts[0]);
  const uint64_t launched = cuemu::CallCount("cudaLaunchKernel");
  for (int round = 0; round < 4; ++round) {
    const Tokens& in = contexts[round % 2];
    const std::vector<Hold> holds = Load(in);
    ASSERT_EQ(holds.size(), kCount);
    Suspend(contexts[1 - round % 2]);
    for (size_t i = 0; i < kCount; ++i) {
      while (holds[i].is_loading()) store_->Poll();
      EXPECT_TRUE(Has(holds[i], static_cast<uint8_t>((round % 2 == 0 ? 10 : 50) + i)));
    }
    store_->CheckInvariants();
  }
  // One a load, and one a demotion: only the first, since what was loaded keeps its copy.
  EXPECT_EQ(cuemu::CallCount("cudaLaunchKernel") - launched, 5u);
}

// What is large, or lies anyhow, goes to the copy engines, all in one call.
TEST_F(CudaBlockMoves, LargePartsAreOneCallAndSmallOnesOneLaunch) {
  constexpr size_t kLarge = cuda::kEnginePartMin, kSmall = 4096, kOdd = 100;
  constexpr size_t kTotal = 3 * kLarge + 2 * kSmall + 2 * kOdd;
  const std::unique_ptr<Buffer> from = *device_->AllocateHost(kTotal);
  const std::unique_ptr<Buffer> to = *device_->Allocate(kTotal);
  for (size_t i = 0; i < kTotal; ++i) from->data()[i] = static_cast<std::byte>(i * 7 + i / 256);
  std::vector<CopyPart> parts;
  size_t at = 0;
  for (const size_t size_bytes : {kLarge, kSmall, kLarge, kSmall, kLarge, kOdd, kOdd, size_t{0}}) {
    parts.push_back({to->data() + at, from->data() + at, size_bytes});
    at += size_bytes;
  }
  const auto calls = [] {
    return std::vector{cuemu::CallCount("cudaLaunchKernel"),
                       cuemu::CallCount("cudaMemcpyBatchAsync"),
                       cuemu::CallCount("cudaMemcpyAsync")};
  };
  std::vector<uint64_t> expected = calls();
  ++expected[0];
#if CUDART_VERSION >= 13000
  ++expected[1];
#else
  expected[2] += 5;
#endif
  compute_->CopyBatch(parts);
  compute_->CopyBatch({});
  EXPECT_EQ(calls(), expected);
  std::vector<std::byte> bytes(kTotal);
  compute_->Copy(bytes.data(), to->data(), kTotal);
  ASSERT_TRUE(compute_->Synchronize().ok());
  EXPECT_EQ(std::memcmp(bytes.data(), from->data(), kTotal), 0);
}

// A copy that could not be put on its stream is over, and has not come.
TEST_F(CudaBlockMoves, ABatchThatFailsIsNotTakenForDone) {
  const Tokens tokens = Numbered(0, 3);
  Fill(tokens, 20);
  Suspend(tokens);
  cuemu::FailCall("cudaLaunchKernel", 1, cudaErrorInvalidValue);
  const std::vector<Hold> lost = Load(tokens);
  ASSERT_EQ(lost.size(), 3u);
  for (const Hold& hold : lost) {
    while (hold.is_loading()) store_->Poll();
    EXPECT_TRUE(hold.is_lost());
  }
  const std::vector<Hold> again = Load(tokens);
  ASSERT_EQ(again.size(), 3u);
  while (again[2].is_loading()) store_->Poll();
  EXPECT_TRUE(Has(again[2], 22));
}

}  // namespace
}  // namespace cairn
