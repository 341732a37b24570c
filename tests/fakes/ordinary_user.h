// What an ordinary user meets, also where tests run as root, for whom no permission is missing.
#pragma once

#include <unistd.h>

#include "base/check.h"

namespace cairn {

// While it lives, the process has the effective user "nobody" if it had root.
class OrdinaryUser {
 public:
  OrdinaryUser() {
    if (was_root_) CHECK(seteuid(65534) == 0);
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;
  ~OrdinaryUser() {
    if (was_root_) CHECK(seteuid(0) == 0);
  }

 private:
  const bool was_root_ = geteuid() == 0;
};

}  // namespace cairn
