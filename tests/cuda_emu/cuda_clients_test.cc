// Random clients of an engine on the emulated CUDA backend (engine_simulation.h): blocks go to the
// host's memory and come back while others are computed, steps of decoding are repeated as graphs,
// and rows of logits are spoilt. Streams, sessions and blocks are those of lone runs.
#include <cuemu/emulator.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_stream.h"
#include "tests/cuda_machine.h"
#include "tests/engine_simulation.h"
#include "tests/fakes/forwarding_device.h"
#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

// Chosen so that a few seconds bring something of everything.
constexpr uint64_t kFirstSeed = 3;
constexpr uint64_t kSeeds = kSanitized ? 1 : 2;
constexpr int kTicks = kSanitized ? 10 : 60;

// Says that it has passed one or a few questions late, and has by then, so that a run is the same
// whatever the threads of the streams do.
class LateEvent final : public Event {
 public:
  LateEvent(EventRef inner, std::shared_ptr<Rng> rng)
      : inner_(std::move(inner)), rng_(std::move(rng)) {}
  const EventRef& inner() const { return inner_; }

  bool Passed() const override {
    if (!has_passed_ && rng_->Chance(0.4)) {
      (void)inner_->Wait();  // what failed is told again
      has_passed_ = true;
    }
    return has_passed_;
  }
  Status Wait() override {
    has_passed_ = true;
    return inner_->Wait();
  }
  double SecondsSince(const Event& earlier) const override {
    return inner_->SecondsSince(*static_cast<const LateEvent&>(earlier).inner_);
  }

 private:
  const EventRef inner_;
  const std::shared_ptr<Rng> rng_;
  mutable bool has_passed_ = false;
};

class StreamOfLateEvents final : public cuda::CudaStream {
 public:
  StreamOfLateEvents(std::unique_ptr<Stream> inner, std::shared_ptr<Rng> rng)
      : inner_(std::move(inner)), rng_(std::move(rng)) {}

  EventRef Record() override { return std::make_shared<LateEvent>(inner_->Record(), rng_); }
  void Wait(const EventRef& event) override {
    if (event != nullptr) inner_->Wait(static_cast<const LateEvent&>(*event).inner());
  }
  void Copy(void* destination, const void* source, size_t size_bytes) override {
    inner_->Copy(destination, source, size_bytes);
  }
  void CopyBatch(std::span<const CopyPart> parts) override { inner_->CopyBatch(parts); }
  void Clear(void* destination, size_t size_bytes) override {
    inner_->Clear(destination, size_bytes);
  }
  Status Synchronize() override { return inner_->Synchronize(); }
  bool failed() const override { return inner_->failed(); }
  cudaStream_t handle() const override { return cuda().handle(); }
  void Fail(Status status) override { cuda().Fail(std::move(status)); }

 private:
  CudaStream& cuda() const { return static_cast<CudaStream&>(*inner_); }

  const std::unique_ptr<Stream> inner_;
  const std::shared_ptr<Rng> rng_;
};

class DeviceOfLateEvents final : public ForwardingDevice {
 public:
  DeviceOfLateEvents(std::unique_ptr<Device> inner, uint64_t seed)
      : ForwardingDevice(std::move(inner)), rng_(std::make_shared<Rng>(seed)) {}

  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Stream> inner, ForwardingDevice::NewStream(use));
    return std::unique_ptr<Stream>(std::make_unique<StreamOfLateEvents>(std::move(inner), rng_));
  }

 private:
  const std::shared_ptr<Rng> rng_;  // of the engine's thread, which alone asks for events
};

BackendMaker OnCuda(uint64_t seed) {
  return [=]() -> Result<Backend> {
    ASSIGN_OR_RETURN(Backend backend, MakeCudaTestBackend(ComputeMode::kExact));
    backend.device = std::make_unique<DeviceOfLateEvents>(std::move(backend.device), seed);
    return backend;
  };
}

TEST(CudaClients, RandomOnesGetWhatLoneRunsGet) {
  const ScratchFolder scratch;
  const std::string model_path = scratch.File("tiny.gguf");
  WriteTinyModel(model_path, {.layers = 1, .width = 32, .heads = 2, .kv_heads = 1, .ffn = 64});
  SimulationCounts totals;
  uint64_t repetitions = 0;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<CudaMachine> machines = CudaMachines();
    StartMachine(machines[seed % machines.size()]);
    {
      LoneDecoder lone(model_path, Simulation::kContextLength,
                       [] { return MakeCudaTestBackend(ComputeMode::kExact); });
      Simulation simulation(seed,
                            {.model_path = model_path,
                             .make_backend = OnCuda(seed),
                             .has_host_pool = true,
                             .device_blocks_max = 12},
                            lone);
      simulation.Run(kTicks);
      totals += simulation.counts();
      repetitions += cuemu::CallCount("cudaGraphLaunch");
    }
    ExpectNothingFound();
    if (HasFailure()) return;
  }
  totals.Print();
  std::printf("%lu steps repeated\n", repetitions);
  if (kSanitized) return;  // too little to have met everything
  EXPECT_GT(totals.ended_ok, 15);
  EXPECT_GT(totals.preemptions, 5);
  EXPECT_GT(totals.bad_rows, 0);
  EXPECT_GT(totals.compared_blocks, 3);
  EXPECT_GT(totals.reloaded_tokens, 0);
  EXPECT_GT(totals.failed[Code::kCancelled], 0);
  EXPECT_GT(repetitions, 20u);
}

}  // namespace
}  // namespace cairn
