#include "offload/cost_model.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "offload/calibration_file.h"
#include "offload/flow_meter.h"
#include "offload/pass_fit.h"
#include "offload/robust_rate.h"

namespace cairn {
namespace {

// About 1, most of the time within 30 %, one in twelve far off.
double Noise(Rng& rng) {
  const double usual = std::exp(0.3 * (rng.Uniform() + rng.Uniform() - 1));
  return rng.Chance(1.0 / 12) ? usual * 20 : usual;
}

TEST(RobustRateTest, SettlesOnTheUsualSample) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    RobustRate rate(1.3);
    for (int i = 0; i < 200; ++i) rate.Note(Noise(rng));
    EXPECT_NEAR(std::log(rate.value()), 0, 0.15);
    EXPECT_LT(rate.spread(), 0.35);
    EXPECT_GT(rate.spread(), 0.05);
    EXPECT_EQ(rate.change_count(), 0u);
  }
}

TEST(RobustRateTest, OneOutlierMovesItLittle) {
  RobustRate rate(1, 0.05);
  for (int i = 0; i < 20; ++i) rate.Note(1);
  rate.Note(1000);
  EXPECT_LT(rate.value(), 1.02);
  for (const double nonsense : {0.0, -1.0, HUGE_VAL, std::nan("")}) rate.Note(nonsense);
  EXPECT_LT(rate.value(), 1.02);
}

TEST(RobustRateTest, OddSamplesAtTheBeginningMatterLittle) {
  RobustRate rate(2, 0.3);
  for (const double sample : {3.0, 8.0, 1.0, 0.99, 1.01}) rate.Note(sample);
  EXPECT_NEAR(rate.value(), 1.4, 0.1);  // half way from what it began with
  for (const double sample : {1.0, 0.99, 1.01}) rate.Note(sample);
  EXPECT_NEAR(rate.value(), 1, 0.05);
}

TEST(RobustRateTest, AnExactMeasurementIsLearnedExactly) {
  RobustRate rate(2);
  for (int i = 0; i < 7; ++i) rate.Note(2);
  for (int i = 0; i < 7; ++i) rate.Note(0.5);
  EXPECT_DOUBLE_EQ(rate.value(), 0.5);
  EXPECT_EQ(rate.change_count(), 1u);
}

// A channel under a simulated clock: loads follow one another.
class FlowMeterTest : public testing::Test {
 protected:
  void Load(uint32_t blocks, double block_s) {
    for (uint32_t i = 0; i < blocks; ++i) meter_.Begin(now_);
    for (uint32_t i = 0; i < blocks; ++i) {
      Pass(block_s);
      meter_.Look(1, true, now_, now_);
    }
  }
  void Pass(double seconds) {
    now_ += std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds));
  }

  FlowMeter meter_;
  Clock::Monotonic now_{std::chrono::seconds(1)};
};

TEST_F(FlowMeterTest, TenTimesSlowerIsNoticedWithinEightTransfersAndSoIsTheEnd) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    meter_ = FlowMeter();
    const auto load = [&](int count, double block_s) {
      for (int i = 0; i < count; ++i) {
        Load(1, block_s * std::exp(0.3 * (rng.Uniform() + rng.Uniform() - 1)));
        Pass(rng.Uniform());  // nothing is under way, which is nobody's time
      }
    };
    load(50, 1e-3);
    EXPECT_NEAR(meter_.flow().block_s, 1e-3, 0.2e-3);
    load(8, 1e-2);
    EXPECT_NEAR(meter_.flow().block_s, 1e-2, 0.3e-2);
    load(50, 1e-2);
    load(8, 1e-3);
    EXPECT_NEAR(meter_.flow().block_s, 1e-3, 0.3e-3);
  }
}

TEST_F(FlowMeterTest, WhatIsUnderWayTakesAtLeastAsLongAsItHasWaited) {
  Load(20, 1e-3);
  meter_.Begin(now_);
  Pass(0.5);
  meter_.Look(0, true, now_, now_);
  EXPECT_NEAR(meter_.flow().block_s, 0.5, 1e-6);
  EXPECT_EQ(meter_.flow().under_way, 1u);
  meter_.Cancel();
  EXPECT_NEAR(meter_.flow().block_s, 1e-3, 1e-5);
}

TEST_F(FlowMeterTest, SeveralThatEndTogetherShareTheTime) {
  for (int i = 0; i < 4; ++i) meter_.Begin(now_);
  Pass(0.4);
  meter_.Look(4, true, now_, now_);
  EXPECT_NEAR(meter_.flow().block_s, 0.1, 1e-6);
}

TEST_F(FlowMeterTest, ATimeThatIsKnownIsTaken) {
  for (int i = 0; i < 20; ++i) {
    meter_.Begin(now_);
    meter_.Begin(now_);
    Pass(1);  // until somebody looks
    meter_.End(1e-3);
    meter_.End(0);  // this one's is not known
  }
  EXPECT_NEAR(meter_.flow().block_s, 1e-3, 1e-6);
  EXPECT_EQ(meter_.flow().under_way, 0u);
}

TEST_F(FlowMeterTest, WhatALoadTookIsComparedWithWhatItWasToTake) {
  const auto counts = [&] { return meter_.predictions().counts(); };
  Load(1, 1e-3);  // of which nothing was known
  EXPECT_EQ(counts(), PredictionHistogram().counts());
  Load(3, 1e-3);
  Load(1, 5e-3);
  std::array<int64_t, 13> expected{};
  expected[6] = 3;  // 0.95 to 1.05
  expected[1] = 1;  // up to a quarter
  EXPECT_EQ(counts(), expected);
}

TEST(PredictionHistogramTest, ABoundBelongsToTheBucketBelowIt) {
  PredictionHistogram histogram;
  for (const double bound : PredictionHistogram::kUpperBounds) histogram.Note(bound, 1);
  histogram.Note(1000, 1);
  for (const int64_t count : histogram.counts()) EXPECT_EQ(count, 1);
  const auto before = histogram.counts();
  histogram.Note(0, 1);
  histogram.Note(1, 0);
  histogram.Note(std::nan(""), 1);
  histogram.Note(1, std::numeric_limits<double>::infinity());
  EXPECT_EQ(histogram.counts(), before) << "only positive numbers are compared";
}

TEST_F(FlowMeterTest, WhatFailedSaysNothing) {
  Load(20, 1e-3);
  meter_.Begin(now_);
  Pass(1);
  meter_.Look(1, false, now_, now_);
  EXPECT_NEAR(meter_.flow().block_s, 1e-3, 1e-5);
}

constexpr PassCosts kTrue = {
    .pass_s = 2e-4, .sweep_s = 4e-3, .token_s = 1e-4, .token_position_s = 2e-8};

PassSample Measure(const PassCosts& costs, CalibrationPoint point, double noise = 1) {
  const double positions = PositionSum(point.first_position, point.rows);
  return {point.rows, positions,
          noise * (costs.FixedSeconds(point.rows) + costs.token_position_s * positions)};
}

TEST(PassFitTest, FindsTheConstants) {
  std::vector<PassSample> samples;
  for (const uint32_t rows : {1, 8, 20, 40, 80, 160, 320}) {
    for (const uint32_t first : {0, 1000, 8000}) samples.push_back(Measure(kTrue, {rows, first}));
  }
  const Result<PassFit> fit = FitPasses(samples);
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->costs.token_s, kTrue.token_s, 1e-9);
  EXPECT_NEAR(fit->costs.sweep_s, kTrue.sweep_s, 1e-7);
  EXPECT_NEAR(fit->costs.token_position_s, kTrue.token_position_s, 1e-13);
  EXPECT_NEAR(fit->costs.pass_s, kTrue.pass_s, 1e-7);
  EXPECT_LT(fit->spread, 1e-6);
}

TEST(PassFitTest, TheCalibrationPredictsWhatItDidNotMeasure) {
  Rng rng(3);
  std::vector<PassSample> samples;
  for (const CalibrationPoint point : CalibrationPoints(512, 8192)) {
    samples.push_back(Measure(kTrue, point, 1 + 0.02 * (rng.Uniform() - 0.5)));
  }
  const Result<PassFit> fit = FitPasses(samples);
  ASSERT_TRUE(fit.ok());
  const PassCostModel model(*fit);
  for (const uint32_t rows : {2, 24, 100, 200, 400}) {
    for (const uint32_t first : {0, 3000, 7000}) {
      const PassSample truth = Measure(kTrue, {rows, first});
      EXPECT_NEAR(model.Predict(rows, truth.position_sum) / truth.seconds, 1, 0.1)
          << rows << " rows at " << first;
    }
  }
}

TEST(PassFitTest, OutliersDoNotDecide) {
  std::vector<PassSample> samples;
  for (const uint32_t rows : {1, 8, 20, 40, 80, 160, 320}) {
    for (const uint32_t first : {0, 1000, 8000}) samples.push_back(Measure(kTrue, {rows, first}));
  }
  samples[4].seconds *= 5;
  samples[13].seconds *= 3;
  const Result<PassFit> fit = FitPasses(samples);
  ASSERT_TRUE(fit.ok());
  const PassCostModel model(*fit);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i == 4 || i == 13) continue;
    EXPECT_NEAR(model.Predict(samples[i].rows, samples[i].position_sum) / samples[i].seconds, 1,
                0.05);
  }
}

// As measured on a processor whose products get better with more rows.
TEST(PassFitTest, RowsNeedNotLieOnStraightLines) {
  const std::vector<std::pair<uint32_t, double>> measured = {
      {1, 7.3e-3},   {4, 7.1e-3},    {16, 6.9e-3}, {32, 12.9e-3},
      {64, 24.4e-3}, {128, 42.6e-3}, {256, 81e-3}};
  std::vector<PassSample> samples;
  for (const auto& [rows, seconds] : measured) {
    for (const uint32_t first : {0, 2000}) {
      const double positions = PositionSum(first, rows);
      const double position_s = rows < 64 ? 1.9e-7 : 1.2e-7;
      samples.push_back({rows, positions, seconds + position_s * positions});
    }
  }
  const Result<PassFit> fit = FitPasses(samples);
  ASSERT_TRUE(fit.ok());
  for (const PassSample& sample : samples) {
    EXPECT_NEAR(fit->costs.Seconds(sample.rows, sample.position_sum) / sample.seconds, 1, 0.02)
        << sample.rows;
  }
  EXPECT_NEAR(fit->costs.FixedSeconds(192), (42.6e-3 + 81e-3) / 2, 3e-3);
  EXPECT_LT(fit->spread, 0.02);
}

TEST(PassFitTest, RefusesWhatIsNoMeasurement) {
  EXPECT_FALSE(FitPasses({}).ok());
  EXPECT_FALSE(FitPasses(std::vector<PassSample>{{1, 0, 1}}).ok());
  EXPECT_FALSE(FitPasses(std::vector<PassSample>{{1, 0, 1}, {2, 1, 0}}).ok());
  EXPECT_FALSE(FitPasses(std::vector<PassSample>{{1, 0, 1}, {0, 1, 1}}).ok());
  EXPECT_TRUE(FitPasses(std::vector<PassSample>{{1, 0, 1}, {1, 0, 1}}).ok());
}

TEST(PassFitTest, CalibrationPointsFitTheModel) {
  uint32_t rows = 0;
  for (const CalibrationPoint& point : CalibrationPoints(512, 8192)) {
    EXPECT_LE(point.first_position + point.rows, 8192u);
    rows += point.rows;
  }
  EXPECT_LE(rows, 1000u);
  for (const CalibrationPoint& point : CalibrationPoints(8, 24)) {
    EXPECT_LE(point.rows, 8u);
    EXPECT_LE(point.first_position + point.rows, 24u);
  }
}

TEST(PassCostModelTest, LearnsAnotherMachineFromItsSteps) {
  // Calibrated twice too cheap, with attention four times too cheap.
  PassCosts wrong = kTrue;
  wrong.token_s /= 2;
  wrong.sweep_s /= 2;
  wrong.token_position_s /= 4;
  PassCostModel model({wrong, 0.02});
  Rng rng(4);
  for (int i = 0; i < 600; ++i) {
    const uint32_t rows = 1u << rng.Below(9);
    const auto first = static_cast<uint32_t>(rng.Below(8000));
    model.Note(Measure(kTrue, {rows, first}, rng.Chance(0.05) ? 4 : 1 + 0.1 * rng.Uniform()));
  }
  for (const uint32_t rows : {16, 64, 256}) {
    for (const uint32_t first : {0, 4000, 7000}) {
      const PassSample truth = Measure(kTrue, {rows, first});
      EXPECT_NEAR(model.Predict(rows, truth.position_sum) / (1.05 * truth.seconds), 1, 0.12)
          << rows << " rows at " << first;
    }
  }
  EXPECT_LT(model.uncertainty(), 0.2);
}

TEST(PassCostModelTest, AKindThatTurnsOutOtherwiseIsBelievedSoon) {
  PassCostModel model({kTrue, 0.02});
  for (uint32_t i = 0; i < 40; ++i) model.Note(Measure(kTrue, {1 + i % 4, 30 * i}));
  const PassSample truth = Measure(kTrue, {192, 700}, 0.75);
  for (int i = 0; i < 5; ++i) model.Note(truth);
  EXPECT_NEAR(model.Predict(192, truth.position_sum) / truth.seconds, 1, 0.1);
}

TEST(PassCostModelTest, FewKindsMoveAllConstantsTogether) {
  PassCostModel model({kTrue, 0.02});
  for (int i = 0; i < 64; ++i) model.Note(Measure(kTrue, {256, 0}, 3));
  EXPECT_NEAR(model.costs().token_s / kTrue.token_s, 3, 0.01);
  EXPECT_NEAR(model.costs().token_position_s / kTrue.token_position_s, 3, 0.01);
}

TEST(PassCostModelTest, DecodingAloneLeavesLongPassesAsTheyWere) {
  PassCostModel model({kTrue, 0.02});
  for (uint32_t i = 0; i < 320; ++i) model.Note(Measure(kTrue, {1 + i % 4, 30 * i}));
  const PassSample truth = Measure(kTrue, {400, 1000});
  EXPECT_NEAR(model.Predict(400, truth.position_sum) / truth.seconds, 1, 0.05);
}

Calibration Example(uint32_t threads) {
  PassCosts costs = kTrue;
  costs.fixed_factors.Add(16, 0.875);
  costs.fixed_factors.Add(256, 1.25);
  costs.position_factors.Add(32, 2);
  return {.subject = {.machine = "a processor \"quoted\"", .model = "0123", .threads = threads},
          .pass = {costs, 0.03}};
}

TEST(CalibrationFileTest, ReadsWhatItWrote) {
  const std::vector<Calibration> written = {Example(2), Example(4)};
  const std::string text = WriteCalibrations(written);
  const auto read = ReadCalibrations(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 2u);
  const Calibration& second = (*read)[1];
  EXPECT_EQ(second.subject, written[1].subject);
  EXPECT_EQ(second.pass.costs.token_position_s, kTrue.token_position_s);
  EXPECT_EQ(second.pass.spread, 0.03);
  EXPECT_EQ(WriteCalibrations(*read), text);
}

TEST(CalibrationFileTest, KeepsTheNewest) {
  std::vector<Calibration> many;
  for (uint32_t i = 0; i < kCalibrationsMax + 3; ++i) many.push_back(Example(i));
  const auto read = ReadCalibrations(WriteCalibrations(many));
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->size(), kCalibrationsMax);
  EXPECT_EQ(read->front().subject.threads, 3u);
}

TEST(CalibrationFileTest, DamageIsAnError) {
  const std::vector<Calibration> written = {Example(2)};
  const std::string text = WriteCalibrations(written);
  for (const char* bad : {"", "{}", "[]", "null", "{\"version\":2}", "{\"version\":\"2\"}",
                          R"({"version":1,"calibrations":[]})", R"({"version":2,"calibrations":7})",
                          R"({"version":2,"calibrations":[{"machine":"m"}]})"}) {
    const auto read = ReadCalibrations(bad);
    ASSERT_FALSE(read.ok()) << bad;
    EXPECT_EQ(read.status().code(), Code::kDataLoss);
  }
  std::string negative = text;
  negative.replace(negative.find("\"pass_s\": "), 10, "\"pass_s\": -");
  EXPECT_FALSE(ReadCalibrations(negative).ok());
  std::string backwards = text;  // knots are in the order of their rows
  backwards.replace(backwards.find("\"rows\": 256"), 11, "\"rows\": 8");
  EXPECT_FALSE(ReadCalibrations(backwards).ok());
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_FALSE(ReadCalibrations(text.substr(0, length)).ok());
  }
  Rng rng(5);
  for (int i = 0; i < 5000; ++i) {  // whatever comes, it comes back
    std::string damaged = text;
    damaged[rng.Below(damaged.size())] = static_cast<char>(rng.Below(256));
    const auto read = ReadCalibrations(damaged);
    EXPECT_TRUE(!read.ok() || read->size() <= 1);
  }
}

}  // namespace
}  // namespace cairn
