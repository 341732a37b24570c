// What requests may cost while they are read: the bounds of one, and of all at once.
//
// Threads: any number of threads at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "base/status.h"

namespace cairn {

class RequestIntake {
 public:
  // `fields_max`: of one request (service/request_bytes.h). `bytes_max`: of all large requests
  // that are being read at once; small ones always pass.
  RequestIntake(size_t fields_max, size_t bytes_max)
      : fields_max_(fields_max), bytes_max_(bytes_max) {}

  // While it lives, the bytes of one request count as being read.
  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : intake_(std::exchange(other.intake_, nullptr)), bytes_(other.bytes_) {}
    Ticket& operator=(Ticket&&) = delete;
    ~Ticket() {
      if (intake_ != nullptr) intake_->Return(bytes_);
    }

   private:
    friend class RequestIntake;
    Ticket(RequestIntake* intake, size_t bytes) : intake_(intake), bytes_(bytes) {}
    RequestIntake* intake_;  // null: nothing to give back
    size_t bytes_;
  };

  // Lets a request of `bytes` in; kResourceExhausted with a time to retry when too much is being
  // read.
  Result<Ticket> Admit(size_t bytes);

  size_t fields_max() const { return fields_max_; }
  size_t bytes_in_flight() const { return bytes_in_flight_; }

  static constexpr size_t kSmallBytesMax = 64u << 10;

 private:
  void Return(size_t bytes);

  const size_t fields_max_;
  const size_t bytes_max_;
  std::atomic<size_t> bytes_in_flight_{0};
};

}  // namespace cairn
