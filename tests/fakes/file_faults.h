// Faults of the disk, for the whole process that links this: what it, or a library in it, asks of
// the files below one folder comes by here first. Calls of the C library are answered in its place,
// so what is tested is what runs elsewhere, RocksDB included.
//
// Threads: the hook is called on the thread that makes the call; it is set while no other does.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace cairn {

struct FileCall {
  enum class Kind { kOpen, kRead, kWrite, kSync, kLink, kRename, kUnlink } kind;
  std::string path;
  size_t size = 0;  // of a read or write
};

struct FileAnswer {
  int error = 0;               // an errno: the call fails with it and does nothing
  size_t size_max = SIZE_MAX;  // a write writes no more than this
};

using FileHook = std::function<FileAnswer(const FileCall&)>;

// While it lives, calls about files below `folder` are asked about.
class FileFaults {
 public:
  FileFaults(std::string folder, FileHook hook);
  ~FileFaults();
  FileFaults(const FileFaults&) = delete;
  FileFaults& operator=(const FileFaults&) = delete;
};

}  // namespace cairn
