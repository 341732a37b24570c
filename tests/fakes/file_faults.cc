#include "tests/fakes/file_faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/check.h"

namespace cairn {
namespace {

struct Plan {
  std::string folder;
  FileHook hook;
};
std::atomic<Plan*> plan{nullptr};
thread_local bool in_hook = false;  // what the hook itself does is not asked about

FileAnswer Ask(FileCall::Kind kind, const char* path, size_t size) {
  Plan* const now = plan.load();
  if (now == nullptr || in_hook || !std::string_view(path).starts_with(now->folder)) return {};
  in_hook = true;
  const FileAnswer answer = now->hook({kind, path, size});
  in_hook = false;
  return answer;
}

FileAnswer Ask(FileCall::Kind kind, int fd, size_t size) {
  if (plan.load() == nullptr || in_hook) return {};
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return {};
  path[length] = '\0';
  return Ask(kind, path, size);
}

template <class Function>
Function* Real(const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  CHECK(function != nullptr);
  return function;
}

// -1 with errno when the answer is an error.
template <class Call>
auto Answer(const FileAnswer& answer, Call call) -> decltype(call()) {
  if (answer.error == 0) return call();
  errno = answer.error;
  return -1;
}

}  // namespace

FileFaults::FileFaults(std::string folder, FileHook hook) {
  CHECK(plan.load() == nullptr);
  plan = new Plan{std::move(folder), std::move(hook)};
}

FileFaults::~FileFaults() { delete plan.exchange(nullptr); }

}  // namespace cairn

using cairn::Answer;
using cairn::Ask;
using cairn::FileAnswer;
using cairn::Real;
using Kind = cairn::FileCall::Kind;

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  static auto* const real = Real<int(const char*, int, ...)>("open");
  return Answer(Ask(Kind::kOpen, path, 0), [&] { return real(path, flags, mode); });
}

ssize_t pread(int fd, void* buffer, size_t size, off_t offset) {
  static auto* const real = Real<ssize_t(int, void*, size_t, off_t)>("pread");
  return Answer(Ask(Kind::kRead, fd, size), [&] { return real(fd, buffer, size, offset); });
}

ssize_t write(int fd, const void* buffer, size_t size) {
  static auto* const real = Real<ssize_t(int, const void*, size_t)>("write");
  const FileAnswer answer = Ask(Kind::kWrite, fd, size);
  return Answer(answer, [&] { return real(fd, buffer, std::min(size, answer.size_max)); });
}

ssize_t pwrite(int fd, const void* buffer, size_t size, off_t offset) {
  static auto* const real = Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const FileAnswer answer = Ask(Kind::kWrite, fd, size);
  return Answer(answer, [&] { return real(fd, buffer, std::min(size, answer.size_max), offset); });
}

int fsync(int fd) {
  static auto* const real = Real<int(int)>("fsync");
  return Answer(Ask(Kind::kSync, fd, 0), [&] { return real(fd); });
}

int fdatasync(int fd) {
  static auto* const real = Real<int(int)>("fdatasync");
  return Answer(Ask(Kind::kSync, fd, 0), [&] { return real(fd); });
}

int link(const char* from, const char* to) noexcept {
  static auto* const real = Real<int(const char*, const char*)>("link");
  return Answer(Ask(Kind::kLink, to, 0), [&] { return real(from, to); });
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = Real<int(const char*, const char*)>("rename");
  return Answer(Ask(Kind::kRename, to, 0), [&] { return real(from, to); });
}

int unlink(const char* path) noexcept {
  static auto* const real = Real<int(const char*)>("unlink");
  return Answer(Ask(Kind::kUnlink, path, 0), [&] { return real(path); });
}

}  // extern "C"
