// Lets RocksDB write table files through DirectWriter: its own direct writes wait for the disk in
// the thread that makes the next part, and its ordinary ones go through the page cache, which
// nobody needs here.
#pragma once

#include <memory>

namespace rocksdb {
class Env;
}

namespace cairn {

// For the options of an SstFileWriter; outlives it.
std::unique_ptr<rocksdb::Env> DirectWriteEnv();

}  // namespace cairn
