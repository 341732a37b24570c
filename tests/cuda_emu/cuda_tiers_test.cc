// The equivalence law on the emulated CUDA backend, through all tiers and their faults: the host's
// pool is copied to the device and back, the disk's blocks pass through the host's memory, copies
// and reads fail, the engine is restarted, restores follow plans drawn at random.
#include <cuda_runtime_api.h>
#include <cuemu/emulator.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "kernels/cuda/cuda_stream.h"
#include "tests/cuda_machine.h"
#include "tests/fakes/forwarding_device.h"
#include "tests/fakes/tiered_world.h"
#include "tests/sanitized.h"
#include "tests/wave_rounds.h"

namespace cairn {
namespace {

constexpr int kHistories = kSanitized ? 1 : 10;
constexpr int kWaves = kSanitized ? 1 : 3;

// Of batches of copies, so many cannot be begun, or not be recorded.
struct CopyFaults {
  double chance = 0;
  Rng rng{1};
  int64_t count = 0;
  int64_t batch_count = 0;  // well or not
};

// Batches begin a millisecond late: passes do not find everything there before they have begun.
class FaultyCopies final : public Stream {
 public:
  FaultyCopies(std::unique_ptr<Stream> inner, std::shared_ptr<CopyFaults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  EventRef Record() override {
    const Fault fault(*faults_, {"cudaEventRecord"});
    return inner_->Record();
  }
  void Wait(const EventRef& event) override { inner_->Wait(event); }
  void Copy(void* destination, const void* source, size_t size_bytes) override {
    inner_->Copy(destination, source, size_bytes);
  }
  void CopyBatch(std::span<const CopyPart> parts) override {
    const auto rest = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const cudaStream_t handle = static_cast<cuda::CudaStream&>(*inner_).handle();
    EXPECT_EQ(cudaLaunchHostFunc(handle, rest, nullptr), cudaSuccess);
    const Fault fault(*faults_, {"cudaLaunchKernel", "cudaMemcpyBatchAsync"});
    ++faults_->batch_count;
    inner_->CopyBatch(parts);
  }
  void Clear(void* destination, size_t size_bytes) override {
    inner_->Clear(destination, size_bytes);
  }
  Status Synchronize() override { return inner_->Synchronize(); }

 private:
  // For a scope: the next call of each function fails.
  class Fault {
   public:
    Fault(CopyFaults& faults, std::initializer_list<const char*> functions) {
      happens_ = faults.rng.Chance(faults.chance);
      if (!happens_) return;
      ++faults.count;
      for (const char* function : functions) cuemu::FailCall(function, 1, cudaErrorInvalidValue);
    }
    ~Fault() {
      if (happens_) cuemu::CancelFailures();
    }
    Fault(const Fault&) = delete;

   private:
    bool happens_;
  };

  const std::unique_ptr<Stream> inner_;
  const std::shared_ptr<CopyFaults> faults_;
};

class DeviceOfFaultyCopies final : public ForwardingDevice {
 public:
  DeviceOfFaultyCopies(std::unique_ptr<Device> inner, std::shared_ptr<CopyFaults> faults)
      : ForwardingDevice(std::move(inner)), faults_(std::move(faults)) {}

  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Stream> inner, ForwardingDevice::NewStream(use));
    if (use == StreamUse::kCompute) return inner;
    return std::unique_ptr<Stream>(std::make_unique<FaultyCopies>(std::move(inner), faults_));
  }

 private:
  const std::shared_ptr<CopyFaults> faults_;
};

BackendMaker OnCuda() {
  return [] { return MakeCudaTestBackend(ComputeMode::kExact); };
}

BackendMaker OnCuda(const std::shared_ptr<CopyFaults>& faults) {
  return [=]() -> Result<Backend> {
    ASSIGN_OR_RETURN(Backend backend, MakeCudaTestBackend(ComputeMode::kExact));
    backend.device = std::make_unique<DeviceOfFaultyCopies>(std::move(backend.device), faults);
    return backend;
  };
}

std::shared_ptr<CopyFaults> SomeFaults(Rng& rng) {
  auto faults = std::make_shared<CopyFaults>();
  if (rng.Chance(0.6)) faults->chance = 0.5 * rng.Uniform();
  faults->rng = Rng(rng.Next());
  return faults;
}

TinyModelOptions SmallModel() { return {.width = 32, .heads = 2, .kv_heads = 1, .ffn = 64}; }

class CudaTiers : public testing::Test {
 protected:
  // Another one each time, with other orders of threads.
  void StartMachineOf(int number) {
    const std::vector<CudaMachine> machines = CudaMachines();
    StartMachine(machines[static_cast<size_t>(number) % machines.size()]);
  }
};

TEST_F(CudaTiers, RandomHistoriesEqualLoneRuns) {
  const MixShape shape = {
      .sessions = 1,
      .turns = 5,
      .shared = 60,
      .prompt = 40,
      .decode = 3,
      .change_share = 0.4,
      .suspended_to = {Tier::kAbsent, Tier::kHost, Tier::kHost, Tier::kDisk, Tier::kDisk}};
  MixComparison comparison;
  int64_t fault_count = 0;
  int64_t batch_count = 0;
  uint64_t from_disk = 0;
  for (int history = 0; history < kHistories; ++history) {
    SCOPED_TRACE("history " + std::to_string(history));
    StartMachineOf(history);
    Rng rng(static_cast<uint64_t>(history) + 1);
    const MixScript script = RandomScript(rng, shape);
    HarnessOptions options = {.model = SmallModel()};
    const std::shared_ptr<CopyFaults> faults = SomeFaults(rng);
    options.make_backend = OnCuda(faults);
    TieredWorld world(rng, script, options);
    options.make_backend = OnCuda();
    options.prefill_chunk = 128;
    MixEngine busy = world.Open();
    busy.restart_chance = 0.1;
    MixEngine lone{.harness = std::make_unique<EngineHarness>(options)};
    comparison.Run(script, busy, lone, rng.Next());
    ExpectNothingFound();
    if (HasFailure()) return;
    fault_count += faults->count;
    batch_count += faults->batch_count;
    if (const auto disk = busy.harness->blocks().disk_stats()) from_disk += disk->loads;
  }
  std::printf("%zu blocks compared, %ld reloaded, %ld restarts, %ld of %ld copies failed\n",
              comparison.compared_blocks(), comparison.reloads(), comparison.restarts(),
              fault_count, batch_count);
  if (kSanitized) return;  // too little to have met everything
  EXPECT_GT(comparison.compared_blocks(), 2u * kHistories);
  EXPECT_GT(comparison.reloads(), kHistories / 2);
  EXPECT_GT(comparison.restarts(), 3);
  EXPECT_GT(fault_count, 3);
  EXPECT_GT(batch_count, 2 * fault_count);
  EXPECT_GT(from_disk, 0u);
}

// Copies of layers are under way on one stream while the pass that waits for them is on another.
TEST_F(CudaTiers, RandomWavesEqualLoneRuns) {
  Rng rng(11);
  WaveRounds rounds({.turns = 5, .prompt = 80, .decode = 3});
  for (int round = 0; round < kWaves; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    StartMachineOf(round);
    HarnessOptions options = {.model = SmallModel(), .make_backend = OnCuda()};
    options.model.layers = static_cast<uint32_t>(2 + rng.Below(3));
    rounds.Play(rng, options, OnCuda(SomeFaults(rng)));
    ExpectNothingFound();
    if (HasFailure()) return;
  }
  std::printf("%ld passes waited for blocks, %ld blocks failed to come, %zu compared\n",
              rounds.waiting_passes(), rounds.failed_blocks(), rounds.compared_blocks());
  if (kSanitized) return;
  EXPECT_GT(rounds.waiting_passes(), 1);
  EXPECT_GT(rounds.compared_blocks(), 5u * kWaves);
}

}  // namespace
}  // namespace cairn
