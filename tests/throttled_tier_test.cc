// A disk that is throttled while contexts come back, and recovers: how soon that is noticed, and
// what it costs. Time passes as the test says: a block takes 16 ms to compute; to load, 0.7 or
// 16 ms, and 369 ms at 1 MB/s.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>

#include "tests/timed_engine.h"

namespace cairn {
namespace {

constexpr uint32_t kBlocks = 60;
constexpr double kFast = 0.0007;
constexpr double kClose = 0.016;
constexpr double kThrottled = 0.369;

class Server {
 public:
  Server(RestorePolicy policy, double load_s) : engine_(Options(policy)) {
    LoadsTake(load_s);
    engine_.Prepare("warm", 99, 16);  // from which the disk's time is known
    Finish(engine_.Start("warm", {}, 1));
    engine_.Prepare("back", 1, kBlocks);
  }
  TimedEngine& engine() { return engine_; }
  void LoadsTake(double seconds) {
    engine_.disk().read_time = [seconds](const BlockIdentity&) { return Seconds(seconds); };
  }
  std::shared_ptr<TimedSink> Start() { return engine_.Start("back", {}, 1); }
  void Finish(const std::shared_ptr<TimedSink>& sink) {
    engine_.RunUntil([&] { return sink->end.has_value(); });
  }
  // Seconds to the first token; then the session is as before.
  double ComeBack(const std::function<void()>& after_each_step = [] {}) {
    const auto back = Start();
    engine_.RunUntil([&] {
      after_each_step();
      return back->end.has_value();
    });
    EXPECT_TRUE(engine_.core().TruncateSession("back", kBlocks * 16).ok());
    EXPECT_TRUE(Suspend(engine_.core(), "back", Tier::kDisk).ok());
    return back->first_token_s();
  }
  double block_s() { return engine_.blocks().disk_flow().block_s; }
  size_t reads() { return engine_.disk().begun().size(); }

 private:
  static TimedEngineOptions Options(RestorePolicy policy) {
    TimedEngineOptions options{.policy = policy};
    options.pass = {.pass_s = 0.0001, .token_s = 0.001};
    options.prefill_chunk = 16;
    return options;
  }
  TimedEngine engine_;
};

// Of {what a load takes at first, when it is throttled as a share of the restore}.
class ThrottledInMidRestore : public testing::TestWithParam<std::tuple<double, double>> {};

TEST_P(ThrottledInMidRestore, CostsLittleMoreThanComputingEverything) {
  const auto [load_s, share] = GetParam();
  const double recompute_all_s = Server(RestorePolicy::kRecomputeAll, load_s).ComeBack();
  const double whole_s = Server(RestorePolicy::kCairn, load_s).ComeBack();
  ASSERT_LT(whole_s, recompute_all_s);
  Server server(RestorePolicy::kCairn, load_s);
  const auto back = server.Start();
  server.engine().RunFor(share * whole_s);
  server.LoadsTake(kThrottled);
  server.Finish(back);
  EXPECT_LE(back->first_token_s(), 1.15 * recompute_all_s);
}

INSTANTIATE_TEST_SUITE_P(AnyTime, ThrottledInMidRestore,
                         testing::Combine(testing::Values(kFast, kClose),
                                          testing::Values(0.0, 0.1, 0.3, 0.5, 0.7, 0.9)));

TEST(ThrottledTier, AFastOneIsAsFastAsLoadingEverything) {
  const double load_all_s = Server(RestorePolicy::kLoadAll, kFast).ComeBack();
  EXPECT_LE(Server(RestorePolicy::kCairn, kFast).ComeBack(), 1.02 * load_all_s);
}

// Returns until what is known of the disk has changed; none may take longer. How many loads began
// before that.
size_t ReturnUntil(Server& server, double at_most_s, const std::function<bool(double)>& is_known) {
  const size_t before = server.reads();
  for (int i = 0; i < 20 && !is_known(server.block_s()); ++i) {
    size_t reads = 0;
    const double took_s = server.ComeBack([&] {
      if (!is_known(server.block_s())) reads = server.reads() - before;
    });
    EXPECT_LE(took_s, at_most_s);
    if (is_known(server.block_s())) return reads;
    server.engine().RunFor(1);  // also the load that nobody waited for is over
  }
  return server.reads() - before;
}

TEST(ThrottledTier, IsNoticedWithinEightTransfersAndSoIsItsRecovery) {
  const double recompute_all_s = Server(RestorePolicy::kRecomputeAll, kFast).ComeBack();
  Server server(RestorePolicy::kCairn, kFast);
  const double fast_s = server.ComeBack();
  server.LoadsTake(kThrottled);
  EXPECT_LE(ReturnUntil(server, 1.15 * recompute_all_s,
                        [](double block_s) { return block_s > 0.8 * kThrottled; }),
            8u);
  EXPECT_NEAR(server.block_s(), kThrottled, 0.1 * kThrottled);
  EXPECT_LE(server.ComeBack(), 1.02 * recompute_all_s) << "it is known by now";
  server.engine().RunFor(1);

  server.LoadsTake(kFast);
  EXPECT_LE(ReturnUntil(server, 1.02 * recompute_all_s,
                        [](double block_s) { return block_s < 2 * kFast; }),
            8u);
  EXPECT_NEAR(server.block_s(), kFast, 0.1 * kFast);
  EXPECT_LE(server.ComeBack(), 1.02 * fast_s) << "it is used again, as before";
}

// Copies to the host's pool are held to a limit, at which they take longer than computing the
// blocks again: who wants their room does not wait for longer than that takes.
TEST(SlowHostPool, NobodyWaitsLongerForRoomThanComputingWhatWouldBeLostTakes) {
  TimedEngineOptions options{.knows_costs = true, .device_blocks = 30, .host_blocks = 100};
  options.pass = {.pass_s = 0.0001, .token_s = 0.001};
  options.copy_time = std::chrono::seconds(1);
  options.is_paced = true;
  TimedEngine engine(options);
  for (int i = 0; i < 3; ++i) {
    const std::string id = "s" + std::to_string(i);
    engine.Create(id, RandomTokens(static_cast<uint64_t>(i), 25 * 16));
    const auto sink = engine.Start(id, {}, 1);
    engine.RunUntil([&] { return sink->end.has_value(); });
    ASSERT_TRUE(sink->end->status.ok()) << sink->end->status.ToString();
    // 25 blocks of 16 ms; eight times that for those that make room, and a copy that had begun.
    EXPECT_LT(sink->first_token_s(), 9 * 25 * 0.016 + 1.1) << id;
  }
}

}  // namespace
}  // namespace cairn
