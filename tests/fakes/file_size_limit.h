// A disk that takes no more than a little, without a disk.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include "base/check.h"

namespace cairn {

// The files of this process may have at most so many bytes, while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit = {bytes, before_.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { CHECK(setrlimit(RLIMIT_FSIZE, &before_) == 0); }

 private:
  rlimit before_;
};

}  // namespace cairn
