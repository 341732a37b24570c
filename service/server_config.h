// The configuration of the server, from flags and from a file in protobuf's text format
// (proto/cairn/v1/config.proto). One table in the .cc lists every setting once: flag, field of the
// file, group of --help, bounds. A flag overrides the file, the file overrides the default.
//
// Everything that comes out of here is within its bounds. Errors are kInvalidArgument, one line,
// and name the flag or field, the limit and what was found; a file's syntax errors name its line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/status.h"

namespace cairn {

struct ServerConfig {
  std::string model;              // empty: the default model, if it is found
  std::string backend = "auto";   // or "cpu" or "cuda"
  std::string compute = "exact";  // or "fast"
  uint64_t context_length = 0;    // positions a session may hold; 0: as trained
  std::string instruction_set;    // empty: the best that the machine has

  std::string listen = "127.0.0.1:50051";
  std::string health_listen;  // empty: no second port
  uint64_t message_bytes_max = 32u << 20;
  uint64_t request_memory_bytes = 128u << 20;  // at least message_bytes_max
  uint64_t stream_buffer_tokens = 1024;
  uint64_t stream_interval_ms = 20;
  uint64_t drain_grace_seconds = 30;

  uint64_t device_memory_bytes = 0;      // 0: fits the machine
  uint64_t host_memory_bytes = 0;        // 0: no host tier
  std::string host_blocks = "in-place";  // or "copied"
  std::string host_pages = "swappable";  // or "locked"
  uint64_t host_bandwidth_limit = 0;     // bytes a second; 0: none

  uint64_t disk_memory_bytes = 0;     // 0: fits the disk
  uint64_t disk_bandwidth_limit = 0;  // bytes a second; 0: none

  std::string disk_dir;             // empty: nothing outlives the process
  std::string durability = "sync";  // or "os" or "none"

  uint64_t threads = 0;  // 0: one a core
  uint64_t max_concurrent = 64;
  uint64_t prefill_chunk_tokens = 256;
  uint64_t max_tokens_default = 1024;
  std::string restore_policy = "cairn";
  uint64_t restore_cut_percent = 50;
  bool recalibrate = false;  // passes are measured, whatever an earlier process found
  uint64_t restore_share_percent = 20;

  std::string log_level = "info";
  std::string trace_file;  // empty: no trace
};

// What the command line asks for: to print `text` and stop (--help, --version), or to serve.
struct CommandLine {
  ServerConfig config;
  std::optional<std::string> text;
};

Result<CommandLine> ParseCommandLine(int argc, const char* const* argv);

// Sets in `config` what the text format `text` sets; `file_name` is for errors.
Status ReadConfigText(const std::string& text, const std::string& file_name, ServerConfig& config);

// Bytes: a whole number, alone or with KiB, MiB, GiB or TiB behind it ("512MiB", "4 GiB").
Result<uint64_t> ParseSize(std::string_view text);

// Of a validated `config.log_level`.
LogLevel LogLevelOf(const ServerConfig& config);

}  // namespace cairn
