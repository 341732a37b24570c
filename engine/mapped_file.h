// A regular file mapped into memory, read only, for as long as the object lives.
//
// The bytes are the kernel's page cache: nothing is read before it is touched, and
// ReleasePages gives resident pages back without losing anything. Whoever truncates the file while
// it is mapped takes the process down (SIGBUS); files are replaced by rename, which is safe.
// Threads: immutable, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace cairn {

// What tells one state of a file from another without reading it.
struct FileIdentity {
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;  // since the epoch
  uint64_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

class MappedFile {
 public:
  // kNotFound, kPermissionDenied, kInvalidArgument (a directory, a device, an empty file), or
  // kUnavailable when the system has no more mappings or descriptors. Messages name the path.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const FileIdentity& identity() const { return identity_; }

  // Takes the whole pages inside `range` (part of bytes()) out of the resident set. They come back
  // from the page cache when they are touched again.
  void ReleasePages(std::span<const std::byte> range) const;

 private:
  MappedFile(std::span<const std::byte> bytes, FileIdentity identity)
      : bytes_(bytes), identity_(identity) {}
  std::span<const std::byte> bytes_;
  FileIdentity identity_;
};

}  // namespace cairn
