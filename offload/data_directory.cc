#include "offload/data_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kFormat = 1;
constexpr std::string_view kMarkText = "cairn data directory, format ";
constexpr const char* kMarkName = "cairn-directory";
constexpr const char* kNewMarkName = "cairn-directory.new";
constexpr const char* kLockName = "lock";

Status Refused(const std::string& path, const std::string& why) {
  return InvalidArgument("--disk-dir: " + path + ": " + why);
}

Status Failed(const std::string& path, const std::string& what) {
  return Refused(path, what + ": " + std::strerror(errno));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// What a small file says; nothing when there is none.
std::optional<std::string> ReadSmallFile(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[256];
  const ssize_t size = file.get() < 0 ? -1 : read(file.get(), text, sizeof text);
  if (size < 0) return std::nullopt;
  return std::string(text, static_cast<size_t>(size));
}

// What is named in a folder survives a loss of power only when the folder itself is synced.
Status SyncFolder(const std::string& path) {
  const FileDescriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || fsync(folder.get()) != 0) return Failed(path, "cannot sync it");
  return Status();
}

std::string ParentOf(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// The directory is there when this is ok.
Status MakeIfMissing(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) return Refused(path, "must be a directory, is a file");
    return Status();
  }
  if (errno != ENOENT) return Failed(path, "cannot look at it");
  const std::string parent = ParentOf(path);
  if (stat(parent.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Refused(path, "cannot be made: there is no directory " + parent);
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Failed(path, "cannot be made");
  return SyncFolder(parent);
}

// The version that a mark names; nothing when it is not a mark of ours.
std::optional<uint32_t> FormatOf(std::string_view mark) {
  if (!mark.starts_with(kMarkText) || !mark.ends_with('\n')) return std::nullopt;
  const std::string_view number = mark.substr(kMarkText.size(), mark.size() - kMarkText.size() - 1);
  uint32_t format = 0;
  const char* const end = number.data() + number.size();
  const auto [parsed_until, error] = std::from_chars(number.data(), end, format);
  if (error != std::errc() || parsed_until != end) return std::nullopt;
  return format;
}

Status CheckMark(const std::string& path, const std::string& mark) {
  const std::optional<uint32_t> format = FormatOf(mark);
  if (!format) {
    return Refused(path, std::string(kMarkName) + " in it is not Cairn's; expected \"" +
                             std::string(kMarkText) + std::to_string(kFormat) + "\"");
  }
  if (*format == kFormat) return Status();
  return Refused(path, "has format " + std::to_string(*format) + ", and this server reads format " +
                           std::to_string(kFormat) + " only");
}

// That the directory is ours, or has nothing of anybody else's. Touches nothing.
Status CheckContents(const std::string& path) {
  if (const auto mark = ReadSmallFile(path + "/" + kMarkName)) return CheckMark(path, *mark);
  std::error_code error;
  bool is_database = false;
  std::string stranger;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    is_database |= name == "CURRENT" || name.starts_with("MANIFEST-");
    // A server that died while it made the directory leaves the first two; a fresh file system
    // has the third.
    if (name != kLockName && name != kNewMarkName && name != "lost+found") stranger = name;
  }
  if (error) return Refused(path, "cannot be read: " + error.message());
  if (is_database) return Refused(path, "holds a RocksDB database that is not Cairn's");
  if (stranger.empty()) return Status();
  return Refused(path, "is not empty and not Cairn's: it has " + stranger + " and no " + kMarkName);
}

Result<int> Lock(const std::string& path) {
  const std::string file = path + "/" + kLockName;
  FileDescriptor lock(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) return Failed(path, "cannot open its lock file");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed(path, "cannot be locked");
    std::string pid = ReadSmallFile(file).value_or("");
    pid.erase(std::min(pid.find('\n'), pid.size()));
    return Unavailable("--disk-dir: " + path + ": is in use by the server with process id " +
                       (pid.empty() ? "(not yet written)" : pid));
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return Failed(path, "cannot write its lock file");
  }
  return lock.release();
}

// A mark is there whole or not at all.
Status WriteMark(const std::string& path) {
  const std::string text = std::string(kMarkText) + std::to_string(kFormat) + "\n";
  const std::string part = path + "/" + kNewMarkName;
  const FileDescriptor file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool written =
      file.get() >= 0 &&
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(file.get()) == 0;
  if (!written || rename(part.c_str(), (path + "/" + kMarkName).c_str()) != 0) {
    return Failed(path, "cannot write " + std::string(kMarkName));
  }
  return SyncFolder(path);
}

Status MakeFolder(const std::string& path, const std::string& name) {
  const std::string folder = path + "/" + name;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Failed(path, "cannot make " + name + "/ in it");
  }
  struct stat info;
  if (stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return Status();
  return Refused(path, name + " in it must be a directory");
}

}  // namespace

Result<std::unique_ptr<DataDirectory>> DataDirectory::Open(const std::string& given) {
  std::string path = fs::path(given).lexically_normal().string();
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
  RETURN_IF_ERROR(MakeIfMissing(path));
  if (faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK | X_OK, AT_EACCESS) != 0) {
    return Failed(path, "must be readable and writable");
  }
  RETURN_IF_ERROR(CheckContents(path));
  ASSIGN_OR_RETURN(const int lock, Lock(path));
  std::unique_ptr<DataDirectory> directory(new DataDirectory(path, lock));
  RETURN_IF_ERROR(CheckContents(path));  // again, now that nobody else changes it
  if (!fs::exists(path + "/" + kMarkName)) RETURN_IF_ERROR(WriteMark(path));
  for (const char* name : {"sessions", "blocks"}) RETURN_IF_ERROR(MakeFolder(path, name));
  RETURN_IF_ERROR(SyncFolder(path));
  return directory;
}

DataDirectory::~DataDirectory() { close(lock_); }

}  // namespace cairn
