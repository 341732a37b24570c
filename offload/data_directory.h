// The directory that outlives the process: --disk-dir. It belongs to one running server at a time.
//
//   DIR/cairn-directory   says that the directory is Cairn's, and the version of its format
//   DIR/lock              locked while a server runs, and holds its process id
//   DIR/sessions/         the database of sessions and tokens (durable_store.h)
//   DIR/blocks/           spilled KV blocks; may be deleted while no server runs: it costs time
//   only
//
// A directory that does not exist is made, one level deep; an empty one is taken. Anything else
// must have the first file, so that a mistyped path is refused before anything in it is touched.
//
// The lock is flock(2): it ends with the process, however that ends, so none is ever left behind.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace cairn {

class DataDirectory {
 public:
  // kInvalidArgument for what is not a directory of ours or cannot be one, kUnavailable when
  // another server has it. The message is one line: what, where, and what was expected or found.
  static Result<std::unique_ptr<DataDirectory>> Open(const std::string& path);
  ~DataDirectory();  // lets go of the lock
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string sessions_path() const { return path_ + "/sessions"; }
  std::string blocks_path() const { return path_ + "/blocks"; }

 private:
  DataDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;  // a file descriptor
};

}  // namespace cairn
