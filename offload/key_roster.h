// The names of a database's keys, in a file of their own: when a table is lost with its index,
// nothing else knows which keys lay there alone.
//
//   line = "+" or "-" | key, in hex | " " | XXH3-128 of what precedes it, in hex
//
// A key is there when its last line is a "+". Lines are appended as keys come and go, and what is
// wrong with one costs that line. The file is written anew, without those of keys that have gone,
// at each opening of the database. Appended lines are not synced: after a loss of power the newest
// may be missing until then, of keys that no table has yet.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "base/status.h"

namespace cairn {

class KeyRoster {
 public:
  // Reads the file, if there is one.
  explicit KeyRoster(std::string path);

  const std::set<std::string>& keys() const { return keys_; }

  // Keys that are not there yet. When they cannot be written nothing is changed:
  // kResourceExhausted, the disk is full, or kUnavailable.
  Status Add(std::span<const std::string> keys);
  // When they cannot be written they count as there until the next Replace.
  Status Remove(std::span<const std::string> keys);
  // These are the keys, and the file has no other lines. Synced.
  Status Replace(std::set<std::string> keys);

 private:
  Status Append(const std::string& lines);

  const std::string path_;
  std::set<std::string> keys_;
  uint64_t line_count_ = 0;  // of the file, those included that are wrong
  uint64_t size_bytes_ = 0;
};

}  // namespace cairn
