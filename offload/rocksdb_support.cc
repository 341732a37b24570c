#include "offload/rocksdb_support.h"

#include <rocksdb/env.h>
#include <rocksdb/status.h>

namespace cairn {
namespace {

class KeepNothing final : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char* /*format*/, va_list /*arguments*/) override {}
};

Code CodeOf(const rocksdb::Status& status) {
  if (status.IsNotFound() || status.IsCorruption() || status.IsPathNotFound()) {
    return Code::kDataLoss;
  }
  return status.IsNoSpace() ? Code::kResourceExhausted : Code::kUnavailable;
}

}  // namespace

Status FromRocksdb(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return Status();
  return Status(CodeOf(status), std::string(what) + ": " + status.ToString());
}

std::shared_ptr<rocksdb::Logger> SilentLogger() { return std::make_shared<KeepNothing>(); }

}  // namespace cairn
