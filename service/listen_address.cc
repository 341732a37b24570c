#include "service/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace cairn {
namespace {

Status BadAddress(const std::string& flag, const std::string& text, const std::string& why) {
  return InvalidArgument(flag + ": " + why + ", is \"" + text + "\"");
}

Status CannotListen(const std::string& flag, const ListenAddress& address, const char* why) {
  return Unavailable(flag + ": cannot listen on " + address.ToString() + ": " + why);
}

// Binds and closes again; 0 or an errno.
int TryBind(const addrinfo& info) {
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on,
             sizeof(on));  // as gRPC will: no wait after a restart
  const bool usable = bind(fd, info.ai_addr, info.ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int error = usable ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

std::string ListenAddress::ToString() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<ListenAddress> ParseListenAddress(const std::string& flag, const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return BadAddress(flag, text, "must be HOST:PORT");
  ListenAddress address;
  address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return BadAddress(flag, text, "an IPv6 host must be in brackets");
  }
  if (address.host.empty()) return BadAddress(flag, text, "must be HOST:PORT");
  const char* const begin = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, address.port);
  if (begin == end || stop != end || error != std::errc()) {
    return BadAddress(flag, text, "the port must be in 0..65535");
  }
  return address;
}

Status CheckCanListen(const std::string& flag, const ListenAddress& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found)) {
    return CannotListen(flag, address, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (const int error = TryBind(*info)) return CannotListen(flag, address, std::strerror(error));
  }
  return Status();
}

}  // namespace cairn
