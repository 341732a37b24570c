#include "engine/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace cairn {

std::string ReadSmallFile(const std::string& path, size_t bytes_max) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // not for a pipe
  if (descriptor < 0) return "";
  std::string text(bytes_max, '\0');
  struct stat info;
  const bool is_file = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  const ssize_t count = is_file ? read(descriptor, text.data(), text.size()) : 0;
  close(descriptor);
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

bool ReplaceSmallFile(const std::string& path, std::string_view text) {
  std::string temporary = path + ".XXXXXX";
  const int descriptor = mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool is_written = write(descriptor, text.data(), text.size()) == ssize_t(text.size());
  const bool is_readable = fchmod(descriptor, 0644) == 0;
  const bool is_closed = close(descriptor) == 0;
  if (is_written && is_readable && is_closed && std::rename(temporary.c_str(), path.c_str()) == 0) {
    return true;
  }
  unlink(temporary.c_str());
  return false;
}

}  // namespace cairn
