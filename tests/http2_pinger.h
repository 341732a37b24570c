// A client that speaks just enough HTTP/2 to ping a server at moments of the test's choice, which
// gRPC's own client does not let it choose, and to see whether the server puts up with it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace cairn {

class Http2Pinger {
 public:
  enum class Answer { kPong, kGoAway, kNothing };

  explicit Http2Pinger(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, ""));
  }
  ~Http2Pinger() { close(socket_); }
  Http2Pinger(const Http2Pinger&) = delete;
  Http2Pinger& operator=(const Http2Pinger&) = delete;

  // Pings, and waits for what comes of it.
  Answer Ping() {
    Send(Frame(kPing, 0, "cairntst"));
    while (true) {
      const std::string header = Receive(9);
      if (header.empty()) return Answer::kNothing;
      const auto byte = [&](size_t i) { return static_cast<uint8_t>(header[i]); };
      const std::string payload =
          Receive(size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | size_t{byte(2)});
      const bool is_answer = (byte(4) & kAck) != 0;
      if (byte(3) == kGoAway) {
        reason_ = payload.substr(8);
        return Answer::kGoAway;
      }
      if (byte(3) == kPing && is_answer) return Answer::kPong;
      if (byte(3) == kSettings && !is_answer) Send(Frame(kSettings, kAck, ""));
      if (byte(3) == kPing && !is_answer) Send(Frame(kPing, kAck, payload));
    }
  }

  // What the server said when it went away.
  const std::string& reason() const { return reason_; }

 private:
  static constexpr uint8_t kSettings = 4;
  static constexpr uint8_t kPing = 6;
  static constexpr uint8_t kGoAway = 7;
  static constexpr uint8_t kAck = 1;

  static std::string Frame(uint8_t type, uint8_t flags, const std::string& payload) {
    std::string frame(9, '\0');
    frame[2] = static_cast<char>(payload.size());
    frame[3] = static_cast<char>(type);
    frame[4] = static_cast<char>(flags);
    return frame + payload;
  }

  void Send(const std::string& bytes) const {
    EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  // `count` bytes; fewer when the connection is closed or silent for a minute.
  std::string Receive(size_t count) const {
    std::string bytes(count, '\0');
    size_t have = 0;
    while (have < count) {
      pollfd readable = {.fd = socket_, .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 60'000) <= 0) break;
      const ssize_t got = recv(socket_, bytes.data() + have, count - have, 0);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }

  const int socket_;
  std::string reason_;
};

}  // namespace cairn
