#include "offload/rocksdb_direct_file.h"

#include <errno.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <cstring>

#include "offload/direct_writer.h"

namespace cairn {
namespace {

rocksdb::IOStatus ToStatus(int error) {
  if (error == 0) return rocksdb::IOStatus::OK();
  return error == ENOSPC ? rocksdb::IOStatus::NoSpace(std::strerror(error))
                         : rocksdb::IOStatus::IOError(std::strerror(error));
}

class DirectFile final : public rocksdb::FSWritableFile {
 public:
  explicit DirectFile(const std::string& path) : writer_(path) {}
  int error() const { return writer_.error(); }

  using FSWritableFile::Append;
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions&,
                           rocksdb::IODebugContext*) override {
    return ToStatus(writer_.Append(std::as_bytes(std::span(data.data(), data.size()))));
  }
  rocksdb::IOStatus Flush(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return ToStatus(writer_.Sync());
  }
  rocksdb::IOStatus Close(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return rocksdb::IOStatus::OK();
  }
  uint64_t GetFileSize(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return writer_.size();
  }

 private:
  DirectWriter writer_;
};

class DirectFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  DirectFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "CairnDirectWrites"; }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions&,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext*) override {
    auto opened = std::make_unique<DirectFile>(path);
    if (opened->error() != 0) return ToStatus(opened->error());
    *file = std::move(opened);
    return rocksdb::IOStatus::OK();
  }
};

}  // namespace

std::unique_ptr<rocksdb::Env> DirectWriteEnv() {
  return rocksdb::NewCompositeEnv(std::make_shared<DirectFileSystem>());
}

}  // namespace cairn
