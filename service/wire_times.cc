#include "service/wire_times.h"

namespace cairn {
namespace {

constexpr int32_t kNanosPerSecond = 1'000'000'000;
constexpr int64_t kSecondsMax = INT64_MAX / kNanosPerSecond - 1;  // 292 years

}  // namespace

Result<Clock::Wall> TimeFromProto(const google::protobuf::Timestamp& time,
                                  const std::string& field) {
  if (time.nanos() < 0 || time.nanos() >= kNanosPerSecond) {
    return InvalidField(field, "nanos must be in 0..999999999, is " + std::to_string(time.nanos()));
  }
  if (time.seconds() < 0 || time.seconds() > kSecondsMax) {
    return InvalidField(field, "must lie in the years 1970 to 2262, is " +
                                   std::to_string(time.seconds()) + " s after 1970");
  }
  const std::chrono::nanoseconds since_epoch =
      std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos());
  return Clock::Wall(std::chrono::duration_cast<Clock::Wall::duration>(since_epoch));
}

Result<std::chrono::nanoseconds> DurationFromProto(const google::protobuf::Duration& duration,
                                                   const std::string& field) {
  const int64_t seconds = duration.seconds();
  const int32_t nanos = duration.nanos();
  if (nanos <= -kNanosPerSecond || nanos >= kNanosPerSecond || (seconds > 0 && nanos < 0) ||
      (seconds < 0 && nanos > 0)) {
    return InvalidField(field, "is malformed: " + std::to_string(seconds) + " s and " +
                                   std::to_string(nanos) + " ns");
  }
  if (seconds < -kSecondsMax || seconds > kSecondsMax) {
    return InvalidField(field, "must be below 292 years, is " + std::to_string(seconds) + " s");
  }
  return std::chrono::seconds(seconds) + std::chrono::nanoseconds(nanos);
}

google::protobuf::Timestamp TimeToProto(Clock::Wall time) {
  // floor, so that nanos stay positive for a clock that is set before 1970
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  google::protobuf::Timestamp proto;
  proto.set_seconds(seconds.time_since_epoch().count());
  proto.set_nanos(static_cast<int32_t>(std::chrono::nanoseconds(time - seconds).count()));
  return proto;
}

google::protobuf::Duration DurationToProto(std::chrono::nanoseconds duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(duration.count() / kNanosPerSecond);
  proto.set_nanos(static_cast<int32_t>(duration.count() % kNanosPerSecond));
  return proto;
}

}  // namespace cairn
