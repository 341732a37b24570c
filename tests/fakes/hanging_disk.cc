// To be loaded into a process before its C library (LD_PRELOAD): whoever syncs the file D/any/file
// waits as long as there is a file D/hang. So a disk hangs that does not answer.
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include <string>

namespace cairn {
namespace {

bool Hangs(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path);
  if (length <= 0) return false;
  std::string folder(path, static_cast<size_t>(length));
  for (int up = 0; up < 2; ++up) {
    const size_t end = folder.rfind('/');
    if (end == std::string::npos) return false;
    folder.resize(end);
  }
  return access((folder + "/hang").c_str(), F_OK) == 0;
}

int SyncOnceItAnswers(const char* name, int fd) {
  while (Hangs(fd)) usleep(10'000);
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace
}  // namespace cairn

extern "C" {

int fsync(int fd) { return cairn::SyncOnceItAnswers("fsync", fd); }

int fdatasync(int fd) { return cairn::SyncOnceItAnswers("fdatasync", fd); }

}  // extern "C"
