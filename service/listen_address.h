// "HOST:PORT" as --listen takes it: a name or address (IPv6 in brackets) and a port, 0 for any free
// one.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace cairn {

struct ListenAddress {
  std::string host;  // without brackets
  uint16_t port = 0;

  std::string ToString() const;  // "127.0.0.1:50051", "[::1]:50051"
};

// kInvalidArgument naming `flag`.
Result<ListenAddress> ParseListenAddress(const std::string& flag, const std::string& text);

// Whether the address can be bound now: the reason in the system's words if not (port in use, no
// such address, no permission), behind `flag`. gRPC itself does not say.
Status CheckCanListen(const std::string& flag, const ListenAddress& address);

}  // namespace cairn
