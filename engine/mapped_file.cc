#include "engine/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cairn {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status SystemError(const std::string& path, const char* what, int error) {
  Code code = Code::kUnavailable;
  if (error == ENOENT || error == ENOTDIR) code = Code::kNotFound;
  if (error == EACCES || error == EPERM) code = Code::kPermissionDenied;
  if (error == EINVAL || error == ELOOP || error == ENAMETOOLONG) code = Code::kInvalidArgument;
  return Status(code, path + ": " + what + ": " + std::strerror(error));
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for somebody to write into it.
  const Descriptor descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) return SystemError(path, "cannot be opened", errno);
  struct stat facts;
  if (fstat(descriptor.get(), &facts) != 0) return SystemError(path, "cannot be examined", errno);
  if (S_ISDIR(facts.st_mode)) {
    return InvalidArgument(path + ": is a directory, expected a model file");
  }
  if (!S_ISREG(facts.st_mode)) {
    return InvalidArgument(path + ": is not a regular file, expected a model file");
  }
  if (facts.st_size == 0) {
    return InvalidArgument(path + ": is empty (0 bytes), expected a model file");
  }
  const auto size = static_cast<size_t>(facts.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (address == MAP_FAILED) return SystemError(path, "cannot be mapped into memory", errno);
  const FileIdentity identity = {
      .size_bytes = size,
      .modified_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec,
      .inode = facts.st_ino,
  };
  return MappedFile({static_cast<const std::byte*>(address), size}, identity);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), identity_(other.identity_) {}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  CHECK(munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()) == 0);
}

void MappedFile::ReleasePages(std::span<const std::byte> range) const {
  static const auto kPageBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(range.data() - bytes_.data());
  CHECK(offset <= bytes_.size() && range.size() <= bytes_.size() - offset);
  const size_t begin = (offset + kPageBytes - 1) / kPageBytes * kPageBytes;
  const size_t end = (offset + range.size()) / kPageBytes * kPageBytes;
  if (begin >= end) return;
  // A refusal costs memory and nothing else, so its result does not matter.
  (void)madvise(const_cast<std::byte*>(bytes_.data() + begin), end - begin, MADV_DONTNEED);
}

}  // namespace cairn
