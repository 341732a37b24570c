#include "engine/trace.h"

#include <cerrno>
#include <cstring>

namespace cairn {

Result<std::unique_ptr<TraceWriter>> TraceWriter::Open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return InvalidArgument("trace: " + path + ": " + std::strerror(errno));
  std::fputs("[", file);
  return std::unique_ptr<TraceWriter>(new TraceWriter(file));
}

TraceWriter::~TraceWriter() {
  std::fputs("\n]\n", file_);
  std::fclose(file_);
}

void TraceWriter::Span(const char* name, Clock::Monotonic begin, Clock::Monotonic end,
                       const std::string& args_json, uint64_t track) {
  if (event_count_ == kEventsMax) return;
  if (!origin_) origin_ = begin;
  using Microseconds = std::chrono::duration<double, std::micro>;
  std::fprintf(file_,
               "%s\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%llu,\"ts\":%.3f,\"dur\":%.3f,"
               "\"args\":{%s}}",
               event_count_ == 0 ? "" : ",", name, static_cast<unsigned long long>(track),
               Microseconds(begin - *origin_).count(), Microseconds(end - begin).count(),
               args_json.c_str());
  ++event_count_;
}

}  // namespace cairn
