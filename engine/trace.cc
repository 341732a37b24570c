#include "engine/trace.h"

#include <cerrno>
#include <cstring>

namespace cairn {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::Open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return InvalidArgument("--trace: " + path + ": " + std::strerror(errno));
  std::fputs("[", file);
  return std::unique_ptr<TraceWriter>(new TraceWriter(file));
}

TraceWriter::~TraceWriter() {
  std::fputs("\n]\n", file_);
  std::fclose(file_);
}

bool TraceWriter::BeginEvent(const char* name, char phase, Clock::Monotonic at, uint64_t track) {
  if (event_count_ == kEventsMax) return false;
  if (!origin_) origin_ = at;
  std::fprintf(file_, "%s\n{\"name\":\"%s\",\"ph\":\"%c\",\"pid\":1,\"tid\":%llu,\"ts\":%.3f",
               event_count_ == 0 ? "" : ",", name, phase, static_cast<unsigned long long>(track),
               Microseconds(at - *origin_).count());
  ++event_count_;
  return true;
}

void TraceWriter::Span(const char* name, Clock::Monotonic begin, Clock::Monotonic end,
                       const std::string& args_json, uint64_t track) {
  if (!BeginEvent(name, 'X', begin, track)) return;
  std::fprintf(file_, ",\"dur\":%.3f,\"args\":{%s}}", Microseconds(end - begin).count(),
               args_json.c_str());
}

void TraceWriter::Instant(const char* name, Clock::Monotonic at, const std::string& args_json,
                          uint64_t track) {
  if (!BeginEvent(name, 'i', at, track)) return;
  std::fprintf(file_, ",\"s\":\"t\",\"args\":{%s}}", args_json.c_str());
}

}  // namespace cairn
