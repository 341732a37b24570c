// What passes cost: measured, kept beside the model, and found again.
#include "engine/calibration.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "engine/small_file.h"
#include "kernels/backend.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/ordinary_user.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

// Each look at it takes a second.
class TickingClock final : public Clock {
 public:
  Monotonic Now() const override { return Monotonic(std::chrono::seconds(++looks_)); }
  Wall WallNow() const override { return {}; }
  void SleepUntil(Monotonic /*time*/) const override {}
  int look_count() const { return looks_; }

 private:
  mutable int looks_ = 0;
};

class CalibrationTest : public testing::Test {
 protected:
  static constexpr uint32_t kRowsMax = 64;
  static constexpr uint32_t kContext = 512;

  CalibrationTest() {
    WriteTinyModel(folder_.File("tiny.gguf"));
    const auto checkpoint = Checkpoint::Open(folder_.File("tiny.gguf"));
    CHECK(checkpoint.ok());
    Result<Backend> backend = MakeCpuBackend({.thread_count = 2});
    CHECK(backend.ok());
    const ModelLimits limits = {
        .context_length = kContext, .block_tokens = 16, .rows_max = kRowsMax, .logits_max = 1};
    auto model = Model::Create(*checkpoint, *std::move(backend), limits, nullptr);
    CHECK(model.ok());
    model_ = *std::move(model);
  }

  const ScratchFolder folder_;
  const std::string path_ = folder_.File("tiny.gguf.calibration");
  const CalibrationSubject subject_ = {.machine = "a processor", .model = "tiny", .threads = 2};
  std::unique_ptr<Model> model_;
};

TEST_F(CalibrationTest, MeasuresPassesOfAModel) {
  const SystemClock clock;
  const Result<PassFit> fit =
      MeasurePasses(*model_, kRowsMax, kContext, std::chrono::seconds(2), clock);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  EXPECT_GT(fit->costs.FixedSeconds(kRowsMax), 0);
  EXPECT_LT(fit->costs.FixedSeconds(kRowsMax), 10);
}

TEST_F(CalibrationTest, EndsInTime) {
  const TickingClock clock;
  const Result<PassFit> fit =
      MeasurePasses(*model_, kRowsMax, kContext, std::chrono::seconds(1), clock);
  EXPECT_EQ(clock.look_count(), 6);  // a first pass that does not count, and the two there must be
  ASSERT_FALSE(fit.ok());            // which took equally long, whatever their rows
  EXPECT_EQ(fit.status().code(), Code::kUnavailable);
}

// Passes take what it is told, one after the other; each is looked at twice.
class ScriptedClock final : public Clock {
 public:
  explicit ScriptedClock(std::vector<double> seconds) : seconds_(std::move(seconds)) {}
  Monotonic Now() const override {
    if (looks_++ % 2 == 1) now_s_ += seconds_.at(looks_ / 2 - 1);
    return Monotonic(std::chrono::nanoseconds(std::llround(now_s_ * 1e9)));
  }
  Wall WallNow() const override { return {}; }
  void SleepUntil(Monotonic /*time*/) const override {}

 private:
  const std::vector<double> seconds_;
  mutable size_t looks_ = 0;
  mutable double now_s_ = 0;
};

TEST_F(CalibrationTest, ALongPassThatWasHeldUpIsMeasuredAgain) {
  constexpr PassCosts kTrue{.pass_s = 0.1, .sweep_s = 0.2, .token_s = 0.05};
  std::vector<PassSample> truth;
  std::vector<double> script = {1};  // the first one does not count
  for (const CalibrationPoint& point : CalibrationPoints(kRowsMax, kContext)) {
    truth.push_back({point.rows, PositionSum(point.first_position, point.rows)});
    truth.back().seconds = kTrue.FixedSeconds(point.rows);
    script.push_back(truth.back().seconds * (truth.size() % 3 == 0 ? 2 : 1));
  }
  for (const PassSample& sample : truth) script.push_back(sample.seconds);
  const ScriptedClock clock(script);
  const Result<PassFit> fit =
      MeasurePasses(*model_, kRowsMax, kContext, std::chrono::hours(1), clock);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  for (const PassSample& sample : truth) {
    EXPECT_NEAR(fit->costs.Seconds(sample.rows, sample.position_sum) / sample.seconds, 1, 0.01);
  }
}

TEST_F(CalibrationTest, NeedsAClockThatGoes) {
  const FakeClock clock;
  const Result<PassFit> fit =
      MeasurePasses(*model_, kRowsMax, kContext, std::chrono::seconds(2), clock);
  ASSERT_FALSE(fit.ok());
  EXPECT_EQ(fit.status().code(), Code::kUnavailable);
}

TEST_F(CalibrationTest, IsFoundAgain) {
  const PassFit fit = {{.pass_s = 0.1, .sweep_s = 0.2, .token_s = 0.3, .token_position_s = 4e-5}};
  EXPECT_FALSE(FindCalibration(path_, subject_));
  ASSERT_TRUE(KeepCalibration(path_, subject_, {{.token_s = 1}}));
  ASSERT_TRUE(KeepCalibration(path_, subject_, fit));
  const std::optional<PassFit> found = FindCalibration(path_, subject_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->costs.token_s, 0.3);
  EXPECT_FALSE(FindCalibration(path_, {.machine = "another", .model = "tiny", .threads = 2}));
  EXPECT_FALSE(FindCalibration(path_, {.machine = "a processor", .model = "big", .threads = 2}));
  EXPECT_FALSE(FindCalibration(path_, {.machine = "a processor", .model = "tiny", .threads = 3}));
}

TEST_F(CalibrationTest, LeavesThoseOfOthers) {
  CalibrationSubject other = subject_;
  other.threads = 8;
  ASSERT_TRUE(KeepCalibration(path_, other, {{.pass_s = 8, .token_s = 1}}));
  ASSERT_TRUE(KeepCalibration(path_, subject_, {{.pass_s = 2, .token_s = 1}}));
  EXPECT_EQ(FindCalibration(path_, other)->costs.pass_s, 8);
  EXPECT_EQ(FindCalibration(path_, subject_)->costs.pass_s, 2);
}

TEST_F(CalibrationTest, OfManyTheOldestAreForgotten) {
  CalibrationSubject subject = subject_;
  for (uint32_t threads = 1; threads <= kCalibrationsMax + 3; ++threads) {
    subject.threads = threads;
    ASSERT_TRUE(KeepCalibration(path_, subject, {{.token_s = 1}}));
  }
  EXPECT_TRUE(FindCalibration(path_, subject));
  subject.threads = 3;
  EXPECT_FALSE(FindCalibration(path_, subject));
  subject.threads = 4;
  EXPECT_TRUE(FindCalibration(path_, subject));
}

TEST_F(CalibrationTest, DamageIsReplaced) {
  ASSERT_TRUE(ReplaceSmallFile(path_, "{\"version\": 2, \"calibrations\": [{"));
  EXPECT_FALSE(FindCalibration(path_, subject_));
  ASSERT_TRUE(KeepCalibration(path_, subject_, {{.token_s = 1}}));
  EXPECT_TRUE(FindCalibration(path_, subject_));
}

TEST_F(CalibrationTest, NonsenseIsNone) {
  const PassFit sane = {{.pass_s = 0.001, .token_s = 0.001}};
  ASSERT_TRUE(KeepCalibration(path_, subject_, sane));
  EXPECT_TRUE(FindCalibration(path_, subject_));
  for (const PassCosts& costs : {PassCosts{}, PassCosts{.pass_s = 1}, PassCosts{.token_s = 1e-320},
                                 PassCosts{.token_s = 1e6}, PassCosts{.pass_s = 1e6, .token_s = 1},
                                 PassCosts{.token_s = 1, .token_position_s = 1}}) {
    ASSERT_TRUE(KeepCalibration(path_, subject_, {costs}));
    EXPECT_FALSE(FindCalibration(path_, subject_));
  }
}

TEST_F(CalibrationTest, APipeIsNoFile) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(FindCalibration(path_, subject_));  // and does not wait for a writer
}

TEST_F(CalibrationTest, NeedNotBeWritable) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0555));
  {
    const OrdinaryUser user;
    EXPECT_FALSE(KeepCalibration(path_, subject_, {}));
  }
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace cairn
