// A Status as clients read it: google.rpc.Status, which travels in the grpc-status-details-bin
// trailer. Every error has an ErrorInfo; a field at fault adds a BadRequest, a time to retry a
// RetryInfo, a session that is missing or already there a ResourceInfo.
#pragma once

#include <string>

#include "base/status.h"
#include "google/rpc/status.pb.h"

namespace cairn {

// Which sessions a request is about, by name: the one that it uses and the one that it makes.
// Empty: none.
struct ErrorSubject {
  std::string used;
  std::string made;
};

// `status` is not ok. A long message is cut, because the trailers of a call have a size limit.
google::rpc::Status ErrorDetails(const Status& status, const ErrorSubject& subject);

}  // namespace cairn
