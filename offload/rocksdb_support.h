// What a user of RocksDB needs: its errors in our words, and its chatter silenced.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rocksdb {
class DB;
class Logger;
class Status;
}  // namespace rocksdb

namespace cairn {

// "WHAT: what RocksDB says". kDataLoss: bytes are damaged or not there; kResourceExhausted: the
// disk is full; kUnavailable: any other error of the disk, or a database that another process has.
Status FromRocksdb(const rocksdb::Status& status, std::string_view what);

// A log that keeps nothing: what matters comes back as a status.
std::shared_ptr<rocksdb::Logger> SilentLogger();

// Gives `visit` every key that begins with `prefix` and its value, in order. `what` is for the
// error.
using KeyVisitor = std::function<void(std::string_view key, std::string_view value)>;
Status ScanKeys(rocksdb::DB& database, std::string_view prefix, const KeyVisitor& visit,
                std::string_view what);

}  // namespace cairn
