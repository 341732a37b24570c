#include "offload/rocksdb_support.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
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

Status ScanKeys(rocksdb::DB& database, std::string_view prefix, const KeyVisitor& visit,
                std::string_view what) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> at(database.NewIterator(options));
  for (at->Seek(rocksdb::Slice(prefix.data(), prefix.size())); at->Valid(); at->Next()) {
    const std::string_view key = at->key().ToStringView();
    if (!key.starts_with(prefix)) break;
    visit(key, at->value().ToStringView());
  }
  return FromRocksdb(at->status(), what);
}

}  // namespace cairn
