// Seeded simulations of the engine (engine_simulation.h), on the CPU, and on a device with memory
// of its own beside a pool in the host's, to which copies are late. Each seed is a test of its own:
//
//   engine_simulation_test [first seed [seed count [ticks a seed]]]
//
// runs other seeds than the usual ones; a seed that failed replays the same run.
#include "tests/engine_simulation.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cstring>

#include "tests/fakes/far_backend.h"
#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

struct SeedRange {
  uint64_t first = 1;
  uint64_t count = kSanitized ? 16 : 40;
  uint64_t ticks = 400;
};

class EngineSimulation : public testing::Test {
 public:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<Shared>();
    TinyModelOptions options;
    options.width = 32;
    options.heads = 2;
    options.kv_heads = 1;
    options.ffn = 64;
    WriteTinyModel(shared_->model_path, options);
    shared_->lone = std::make_unique<LoneDecoder>(shared_->model_path, Simulation::kContextLength);
  }
  static void TearDownTestSuite() { shared_.reset(); }

 protected:
  struct Shared {
    ScratchFolder scratch;
    const std::string model_path = scratch.File("tiny.gguf");
    std::unique_ptr<LoneDecoder> lone;
    SimulationCounts totals;
  };
  static inline std::unique_ptr<Shared> shared_;
};

class OneSeed final : public EngineSimulation {
 public:
  OneSeed(uint64_t seed, uint64_t ticks, bool is_far)
      : seed_(seed), ticks_(ticks), is_far_(is_far) {}
  void TestBody() override {
    SimulatedWorld world = {.model_path = shared_->model_path};
    if (is_far_) {
      world.has_host_pool = true;
      world.make_backend = [this] {
        return MakeFarBackend({.thread_count = 1}, {.are_late = true, .seed = seed_});
      };
    }
    Simulation simulation(seed_, world, *shared_->lone);
    simulation.Run(static_cast<int>(ticks_));
    shared_->totals += simulation.counts();
    EXPECT_FALSE(HasFailure()) << "replay it: engine_simulation_test " << seed_ << " 1 " << ticks_;
  }

 private:
  const uint64_t seed_;
  const uint64_t ticks_;
  const bool is_far_;
};

// Comes after the seeds: all that a run can bring has happened in some of them.
class EverythingHappened final : public EngineSimulation {
 public:
  void TestBody() override {
    const SimulationCounts& totals = shared_->totals;
    totals.Print();
    EXPECT_GT(totals.steps, 5000);
    EXPECT_GT(totals.preemptions, 100);
    EXPECT_GT(totals.ended_ok, 1000);
    EXPECT_GT(totals.probes, 200);
    EXPECT_GT(totals.bad_rows, 10);
    EXPECT_GT(totals.expired, 50);
    EXPECT_GT(totals.pauses, 200);
    EXPECT_GT(totals.compared_blocks, 500);
    EXPECT_GT(totals.reloaded_tokens, 3000);
    for (const Code code : {Code::kCancelled, Code::kDeadlineExceeded, Code::kAborted,
                            Code::kNotFound, Code::kResourceExhausted, Code::kInternal}) {
      EXPECT_TRUE(totals.failed.contains(code)) << Status(code, "").ToString();
    }
    for (const Code code : {Code::kInvalidArgument, Code::kAborted, Code::kNotFound,
                            Code::kAlreadyExists, Code::kResourceExhausted}) {
      EXPECT_TRUE(totals.refused.contains(code)) << Status(code, "").ToString();
    }
  }
};

void Register(const SeedRange& seeds, bool usual) {
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    for (const bool is_far : {false, true}) {
      const std::string name = (is_far ? "FarSeed" : "Seed") + std::to_string(seed);
      testing::RegisterTest(
          "EngineSimulation", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
          [=]() -> EngineSimulation* { return new OneSeed(seed, seeds.ticks, is_far); });
    }
  }
  if (!usual) return;
  testing::RegisterTest("EngineSimulation", "EverythingHappened", nullptr, nullptr, __FILE__,
                        __LINE__, []() -> EngineSimulation* { return new EverythingHappened(); });
}

bool ReadNumber(const char* text, uint64_t& number) {
  const char* const end = text + std::strlen(text);
  return std::from_chars(text, end, number).ptr == end;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  cairn::SeedRange seeds;
  const std::array<uint64_t*, 3> numbers = {&seeds.first, &seeds.count, &seeds.ticks};
  bool good = argc <= 4;
  for (int i = 1; good && i < argc; ++i) good = cairn::ReadNumber(argv[i], *numbers[i - 1]);
  if (!good) {
    std::fprintf(stderr, "usage: engine_simulation_test [first seed [seed count [ticks]]]\n");
    return 2;
  }
  cairn::Register(seeds, argc == 1);
  return RUN_ALL_TESTS();
}
