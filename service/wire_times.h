// Protobuf's Timestamp and Duration to std::chrono and back. Times are held in nanoseconds, which
// span 292 years to both sides of 1970; a value that does not fit, or is malformed, is refused.
#pragma once

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <chrono>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace cairn {

// kInvalidArgument naming `field`.
Result<Clock::Wall> TimeFromProto(const google::protobuf::Timestamp& time,
                                  const std::string& field);
Result<std::chrono::nanoseconds> DurationFromProto(const google::protobuf::Duration& duration,
                                                   const std::string& field);

google::protobuf::Timestamp TimeToProto(Clock::Wall time);
google::protobuf::Duration DurationToProto(std::chrono::nanoseconds duration);

}  // namespace cairn
