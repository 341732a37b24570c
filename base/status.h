// Status and Result<T>: the one error vocabulary. What the world can do to us is a Status that the
// caller acts on; what only a bug can do is a CHECK (base/check.h). No exception crosses a layer.
//
// Codes have the numbers of gRPC's, so the service layer maps them one to one. A Status may name
// the request field it is about and the time after which a retry makes sense; both reach the client
// as google.rpc error details.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace cairn {

enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

// "INVALID_ARGUMENT" and so on.
const char* CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The request field at fault, in the names of the wire ("sampling.temperature"); empty if none.
  const std::string& field() const { return field_; }
  Status&& WithField(std::string field) && {
    field_ = std::move(field);
    return std::move(*this);
  }

  std::optional<std::chrono::milliseconds> retry_after() const { return retry_after_; }
  Status&& WithRetryAfter(std::chrono::milliseconds delay) && {
    retry_after_ = delay;
    return std::move(*this);
  }

  // "INVALID_ARGUMENT: sampling.temperature: must be in [0, 2], is -1"
  std::string ToString() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
  std::string field_;
  std::optional<std::chrono::milliseconds> retry_after_;
};

inline Status InvalidArgument(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}
// The usual way to refuse a request: which field, and what is wrong with it.
inline Status InvalidField(std::string field, const std::string& why) {
  std::string message = field + ": " + why;
  return Status(Code::kInvalidArgument, std::move(message)).WithField(std::move(field));
}
inline Status NotFound(std::string message) { return Status(Code::kNotFound, std::move(message)); }
inline Status Aborted(std::string message) { return Status(Code::kAborted, std::move(message)); }
inline Status ResourceExhausted(std::string message) {
  return Status(Code::kResourceExhausted, std::move(message));
}
inline Status FailedPrecondition(std::string message) {
  return Status(Code::kFailedPrecondition, std::move(message));
}
inline Status Unavailable(std::string message) {
  return Status(Code::kUnavailable, std::move(message));
}

// A T, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}        // NOLINT
  Result(Status status) : state_(std::in_place_index<0>, std::move(status)) {  // NOLINT
    CHECK(!std::get<0>(state_).ok());  // an ok Result carries a value
  }

  bool ok() const { return state_.index() == 1; }
  const Status& status() const {
    static const Status kOkStatus;
    return ok() ? kOkStatus : std::get<0>(state_);
  }
  T& operator*() & {
    CHECK(ok());
    return std::get<1>(state_);
  }
  const T& operator*() const& {
    CHECK(ok());
    return std::get<1>(state_);
  }
  T&& operator*() && {
    CHECK(ok());
    return std::get<1>(std::move(state_));
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

 private:
  std::variant<Status, T> state_;
};

}  // namespace cairn

#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)

// Returns the Status of `expr` from the enclosing function when it is not ok.
#define RETURN_IF_ERROR(expr)                                            \
  do {                                                                   \
    if (::cairn::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

// ASSIGN_OR_RETURN(auto x, F()): x gets the value, or the enclosing function returns the Status.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_INNER(CAIRN_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                           \
  if (!result.ok()) return result.status();       \
  lhs = *std::move(result)
