#include "service/server_config.h"

#include <fcntl.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <variant>
#include <vector>

#include "cairn/v1/config.pb.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kTokensMax = (uint64_t{1} << 31) - 1;
constexpr uint64_t kConfigFileBytesMax = kMiB;
// Twice as many tokens, with 20 logprobs each, are about 2 MiB: less than the 4 MiB that a client
// takes as one message by default.
constexpr uint64_t kStreamBufferMax = 4096;

constexpr const char* kVersionText = "cairnd " CAIRN_VERSION;

enum class Unit { kNone, kBytes, kBytesPerSecond };

// A whole number within [low, high]; `zero` says what 0 means where 0 is allowed below `low`.
struct NumberSetting {
  uint64_t ServerConfig::*member;
  uint64_t low;
  uint64_t high;
  const char* zero = nullptr;
  Unit unit = Unit::kNone;
};

// Text, free or one of `choices`; `empty` says what none means.
struct TextSetting {
  std::string ServerConfig::*member;
  std::vector<std::string> choices = {};
  const char* empty = nullptr;
};

// Off until it is named.
struct SwitchSetting {
  bool ServerConfig::*member;
};

struct Setting {
  const char* flag;
  const char* field;  // of cairn.v1.ServerConfig
  const char* group;
  const char* value_name;  // of a switch: null
  const char* help;
  std::variant<NumberSetting, TextSetting, SwitchSetting> value;
};

std::vector<Setting> ComputeAndNetworkSettings() {
  using C = ServerConfig;
  return {
      {"--model", "model", "Model", "FILE", "GGUF file of a Llama-architecture model",
       TextSetting{&C::model, {}, "the one that ./cairn setup fetches"}},
      {"--backend", "backend", "Model", "NAME",
       "what computes: cpu, cuda (needs libcairn_cuda.so beside this program, and a GPU), or auto: "
       "cuda where it can be had",
       TextSetting{&C::backend, {"auto", "cpu", "cuda"}}},
      {"--compute", "compute", "Model", "MODE",
       "arithmetic of matrix products: exact (16-bit activations) or fast (8-bit)",
       TextSetting{&C::compute, {"exact", "fast"}}},
      {"--context-length", "context_length", "Model", "TOKENS",
       "positions that one session may hold; beyond the trained length with RoPE scaling",
       NumberSetting{&C::context_length, 16, 4 << 20, "as trained"}},
      {"--instruction-set", "instruction_set", "Model", "NAME",
       "of the CPU kernels: portable, avx2 or avx512",
       TextSetting{&C::instruction_set, {}, "the best of this machine"}},

      {"--listen", "listen", "Network", "HOST:PORT", "address to serve on; port 0: any free one",
       TextSetting{&C::listen}},
      {"--health-listen", "health_listen", "Network", "HOST:PORT",
       "a second port, always in plaintext, that serves grpc.health.v1 alone",
       TextSetting{&C::health_listen, {}, "none"}},
      {"--message-size-max", "message_bytes_max", "Network", "SIZE", "largest request",
       NumberSetting{&C::message_bytes_max, 64u << 10, 1u << 30, nullptr, Unit::kBytes}},
      {"--request-memory", "request_memory_bytes", "Network", "SIZE",
       "for all large requests that are being read at once; at least --message-size-max",
       NumberSetting{&C::request_memory_bytes, 64u << 10, uint64_t{1} << 40, nullptr,
                     Unit::kBytes}},
      {"--stream-buffer", "stream_buffer_tokens", "Network", "TOKENS",
       "tokens that wait for a slow reader before its sequence is paused",
       NumberSetting{&C::stream_buffer_tokens, 1, kStreamBufferMax}},
      {"--stream-interval", "stream_interval_ms", "Network", "MS",
       "tokens of a stream that come within it share a message, the first excepted; 0: none do",
       NumberSetting{&C::stream_interval_ms, 0, 1000}},
      {"--drain-grace", "drain_grace_seconds", "Network", "SECONDS",
       "how long running streams may go on after SIGTERM",
       NumberSetting{&C::drain_grace_seconds, 0, 86'400}},
  };
}

std::vector<Setting> MemoryAndDiskSettings() {
  using C = ServerConfig;
  return {
      {"--device-memory", "device_memory_bytes", "Memory", "SIZE", "for KV blocks",
       NumberSetting{&C::device_memory_bytes, kMiB, uint64_t{1} << 46, "fits the machine",
                     Unit::kBytes}},

      {"--host-memory", "host_memory_bytes", "Memory", "SIZE",
       "for KV blocks that leave the device, in the host's memory",
       NumberSetting{&C::host_memory_bytes, kMiB, uint64_t{1} << 46, "none", Unit::kBytes}},
      {"--host-blocks", "host_blocks", "Memory", "HOW",
       "how blocks in the host's memory are used: in-place, where the device can, or copied",
       TextSetting{&C::host_blocks, {"in-place", "copied"}}},
      {"--host-pages", "host_pages", "Memory", "HOW",
       "whether the host's memory for KV blocks may be swapped out: swappable, or locked, which "
       "needs a limit on locked memory that allows it",
       TextSetting{&C::host_pages, {"swappable", "locked"}}},
      {"--host-bandwidth-limit", "host_bandwidth_limit", "Memory", "SIZE/s",
       "copies of KV blocks between the device and the host's memory, both ways together",
       NumberSetting{&C::host_bandwidth_limit, 64u << 10, uint64_t{1} << 44, "none",
                     Unit::kBytesPerSecond}},

      {"--disk-dir", "disk_dir", "Disk", "DIR",
       "where sessions, and KV blocks that leave memory, are kept from one start to the next; made "
       "when it is missing",
       TextSetting{&C::disk_dir, {}, "none: sessions end with the process"}},
      {"--durability", "durability", "Disk", "LEVEL",
       "what a session's change survives once it is answered: sync (a loss of power), os (the "
       "death of the process) or none (sessions end with the process)",
       TextSetting{&C::durability, {"sync", "os", "none"}}},
      {"--disk-memory", "disk_memory_bytes", "Disk", "SIZE",
       "for KV blocks below --disk-dir; never exceeded",
       NumberSetting{&C::disk_memory_bytes, 16 * kMiB, uint64_t{1} << 50, "fits the disk",
                     Unit::kBytes}},
      {"--disk-bandwidth-limit", "disk_bandwidth_limit", "Disk", "SIZE/s",
       "reads and writes of KV blocks together",
       NumberSetting{&C::disk_bandwidth_limit, 64u << 10, uint64_t{1} << 40, "none",
                     Unit::kBytesPerSecond}},
  };
}

std::vector<Setting> SchedulingAndOtherSettings() {
  using C = ServerConfig;
  return {
      {"--threads", "threads", "Scheduling", "N", "compute threads",
       NumberSetting{&C::threads, 1, 256, "one a core"}},
      {"--max-concurrent", "max_concurrent", "Scheduling", "N", "sequences that run at once",
       NumberSetting{&C::max_concurrent, 1, 1024}},
      {"--prefill-chunk", "prefill_chunk_tokens", "Scheduling", "TOKENS",
       "prompt tokens a step, beside the decoding sequences",
       NumberSetting{&C::prefill_chunk_tokens, 16, 8192}},
      {"--max-tokens-default", "max_tokens_default", "Scheduling", "TOKENS",
       "output of a request that names no max_tokens",
       NumberSetting{&C::max_tokens_default, 1, kTokensMax}},
      {"--restore-policy", "restore_policy", "Scheduling", "NAME",
       "what becomes of blocks that are not in memory: cairn (the least predicted time), load_all, "
       "recompute_all, greedy, threshold, cake, cut or wave (wherever it can be carried out)",
       TextSetting{
           &C::restore_policy,
           {"cairn", "load_all", "recompute_all", "greedy", "threshold", "cake", "cut", "wave"}}},
      {"--restore-cut", "restore_cut_percent", "Scheduling", "PERCENT",
       "of a context, what --restore-policy cut computes from its beginning; the rest is loaded",
       NumberSetting{&C::restore_cut_percent, 0, 100}},
      {"--recalibrate", "recalibrate", "Scheduling", nullptr,
       "measure what forward passes cost, which takes up to two seconds, though an earlier start "
       "left it beside the model file",
       SwitchSetting{&C::recalibrate}},
      {"--restore-share", "restore_share_percent", "Scheduling", "PERCENT",
       "of the time of running streams, what computing contexts again that come back may take at "
       "most",
       NumberSetting{&C::restore_share_percent, 1, 95}},

      {"--log-level", "log_level", "Observability", "LEVEL", "debug, info, warning or error",
       TextSetting{&C::log_level, {"debug", "info", "warning", "error"}}},
      {"--trace", "trace_file", "Observability", "FILE",
       "write a timeline of every step in Chrome's trace format",
       TextSetting{&C::trace_file, {}, "none"}},
  };
}

const std::vector<Setting>& Settings() {
  static const std::vector<Setting> kSettings = [] {
    std::vector<Setting> settings = ComputeAndNetworkSettings();
    for (auto* const others : {&MemoryAndDiskSettings, &SchedulingAndOtherSettings}) {
      for (Setting& setting : others()) settings.push_back(std::move(setting));
    }
    return settings;
  }();
  return kSettings;
}

std::string FormatNumber(uint64_t value, Unit unit) {
  constexpr std::array kSuffixes = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t scale = 0;
  while (unit != Unit::kNone && value >= 1024 && value % 1024 == 0 &&
         scale + 1 < kSuffixes.size()) {
    value /= 1024;
    ++scale;
  }
  return std::to_string(value) + kSuffixes[scale] + (unit == Unit::kBytesPerSecond ? "/s" : "");
}

Status Assign(const NumberSetting& setting, const std::string& name, uint64_t value,
              ServerConfig& config) {
  const bool is_zero_allowed = setting.zero != nullptr || setting.low == 0;
  if (value > setting.high || (value < setting.low && !(value == 0 && is_zero_allowed))) {
    const std::string zero = setting.zero ? " or 0 (" + std::string(setting.zero) + ")" : "";
    return InvalidArgument(name + ": must be in " + FormatNumber(setting.low, setting.unit) + ".." +
                           FormatNumber(setting.high, setting.unit) + zero + ", is " +
                           FormatNumber(value, setting.unit));
  }
  config.*setting.member = value;
  return Status();
}

Status Assign(const TextSetting& setting, const std::string& name, const std::string& value,
              ServerConfig& config) {
  const auto& choices = setting.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
    std::string list;
    for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
    return InvalidArgument(name + ": must be one of " + list + ", is \"" + value + "\"");
  }
  config.*setting.member = value;
  return Status();
}

Result<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return InvalidArgument("is too large");
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("must be a whole number");
  }
  return value;
}

Status AssignFlag(const Setting& setting, const std::string& text, ServerConfig& config) {
  if (const auto* flag = std::get_if<SwitchSetting>(&setting.value)) {
    config.*flag->member = true;
    return Status();
  }
  if (const auto* string = std::get_if<TextSetting>(&setting.value)) {
    return Assign(*string, setting.flag, text, config);
  }
  const auto& number = std::get<NumberSetting>(setting.value);
  std::string_view amount = text;
  if (number.unit == Unit::kBytesPerSecond && amount.ends_with("/s")) amount.remove_suffix(2);
  const Result<uint64_t> value =
      number.unit == Unit::kNone ? ParseNumber(amount) : ParseSize(amount);
  if (!value.ok()) {
    return InvalidArgument(std::string(setting.flag) + ": " + value.status().message() + ", is \"" +
                           text + "\"");
  }
  return Assign(number, setting.flag, *value, config);
}

Status AssignField(const Setting& setting, const v1::ServerConfig& message,
                   const std::string& file_name, ServerConfig& config) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::FieldDescriptor* field =
      message.GetDescriptor()->FindFieldByName(setting.field);
  CHECK(field != nullptr);
  if (!reflection.HasField(message, field)) return Status();
  const std::string name = file_name + ": " + setting.field;
  if (const auto* flag = std::get_if<SwitchSetting>(&setting.value)) {
    config.*flag->member = reflection.GetBool(message, field);
    return Status();
  }
  if (const auto* string = std::get_if<TextSetting>(&setting.value)) {
    return Assign(*string, name, reflection.GetString(message, field), config);
  }
  const uint64_t value = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT32
                             ? reflection.GetUInt32(message, field)
                             : reflection.GetUInt64(message, field);
  return Assign(std::get<NumberSetting>(setting.value), name, value, config);
}

// Keeps the first error of the text format's parser, with its place.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(std::string file_name) : file_name_(std::move(file_name)) {}
  void AddError(int line, int column, const std::string& message) override {
    if (!text_.empty()) return;
    text_ = file_name_ + ":" + std::to_string(line + 1) + ":" + std::to_string(column + 1) + ": " +
            message;
  }
  void AddWarning(int, int, const std::string&) override {}
  const std::string& text() const { return text_; }

 private:
  const std::string file_name_;
  std::string text_;
};

Result<std::string> ReadConfigFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return InvalidArgument("--config: cannot read " + path + ": " + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return InvalidArgument("--config: " + path + " is not a file");
  if (static_cast<uint64_t>(info.st_size) > kConfigFileBytesMax) {
    return InvalidArgument("--config: " + path + ": must have at most " +
                           FormatNumber(kConfigFileBytesMax, Unit::kBytes) + ", has " +
                           std::to_string(info.st_size) + " bytes");
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return InvalidArgument("--config: cannot read " + path);
  return std::move(text).str();
}

// "16..8192, default: 256".
std::string BoundsText(const Setting& setting) {
  const ServerConfig defaults;
  if (std::holds_alternative<SwitchSetting>(setting.value)) return "default: off";
  if (const auto* string = std::get_if<TextSetting>(&setting.value)) {
    const std::string& value = defaults.*string->member;
    return "default: " + (value.empty() ? string->empty : value);
  }
  const auto& number = std::get<NumberSetting>(setting.value);
  const uint64_t value = defaults.*number.member;
  return FormatNumber(number.low, number.unit) + ".." + FormatNumber(number.high, number.unit) +
         ", default: " +
         (value == 0 && number.zero ? number.zero : FormatNumber(value, number.unit));
}

// The flags as CLI11 knows them; the values that were given land in `given`, by row of the table.
void DefineFlags(CLI::App& app, std::vector<std::optional<std::string>>& given,
                 std::optional<std::string>& config_path) {
  const std::vector<Setting>& settings = Settings();
  given.resize(settings.size());
  for (size_t i = 0; i < settings.size(); ++i) {
    const std::string help = std::string(settings[i].help) + " (" + BoundsText(settings[i]) + ")";
    if (settings[i].value_name == nullptr) {
      app.add_flag_callback(
             settings[i].flag, [&value = given[i]] { value.emplace(); }, help)
          ->group(settings[i].group);
      continue;
    }
    CLI::Option* option = app.add_option(settings[i].flag, given[i], help);
    option->group(settings[i].group)->type_name(settings[i].value_name);
    option->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  }
  app.add_option("--config", config_path, "read settings in protobuf's text format; flags override")
      ->group("General")
      ->type_name("FILE");
  app.footer("SIZE: bytes, or a number with KiB, MiB, GiB or TiB.");
  app.set_help_flag("--help,-h", "print this and exit")->group("General");
  app.set_version_flag("--version", kVersionText, "print the version and exit")->group("General");
}

// What the settings have to do with each other.
Status CheckTogether(const ServerConfig& config) {
  if (config.request_memory_bytes < config.message_bytes_max) {
    return InvalidArgument("--request-memory: must be at least --message-size-max (" +
                           FormatNumber(config.message_bytes_max, Unit::kBytes) + "), is " +
                           FormatNumber(config.request_memory_bytes, Unit::kBytes));
  }
  if (config.disk_dir.empty() && config.disk_memory_bytes > 0) {
    return InvalidArgument("--disk-memory: has no place without --disk-dir");
  }
  if (config.disk_dir.empty() && config.disk_bandwidth_limit > 0) {
    return InvalidArgument("--disk-bandwidth-limit: limits nothing without --disk-dir");
  }
  if (config.disk_dir.empty() && config.host_memory_bytes == 0 && config.host_bandwidth_limit > 0) {
    return InvalidArgument(
        "--host-bandwidth-limit: limits nothing without --host-memory or --disk-dir");
  }
  if (config.restore_policy != "cut" &&
      config.restore_cut_percent != ServerConfig().restore_cut_percent) {
    return InvalidArgument("--restore-cut: cuts nothing without --restore-policy cut, is " +
                           std::to_string(config.restore_cut_percent));
  }
  return Status();
}

}  // namespace

Result<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CLI::App app("Decodes large language models over long-lived sessions, through gRPC.", "cairnd");
  std::vector<std::optional<std::string>> given;
  std::optional<std::string> config_path;
  DefineFlags(app, given, config_path);
  CommandLine line;
  try {  // CLI11 reports through exceptions; none leaves this function
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
    return line;
  } catch (const CLI::CallForVersion&) {
    line.text = std::string(kVersionText) + "\n";
    return line;
  } catch (const CLI::ExtrasError&) {
    return InvalidArgument("unknown flag or argument: " + app.remaining().front() +
                           " (--help lists the flags)");
  } catch (const CLI::Error& error) {
    return InvalidArgument(std::string(error.what()) + " (--help lists the flags)");
  }
  if (config_path) {
    ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(*config_path));
    RETURN_IF_ERROR(ReadConfigText(text, *config_path, line.config));
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i]) RETURN_IF_ERROR(AssignFlag(Settings()[i], *given[i], line.config));
  }
  RETURN_IF_ERROR(CheckTogether(line.config));
  return line;
}

Status ReadConfigText(const std::string& text, const std::string& file_name, ServerConfig& config) {
  FirstError error(file_name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  v1::ServerConfig message;
  if (!parser.ParseFromString(text, &message)) return InvalidArgument(error.text());
  for (const Setting& setting : Settings()) {
    RETURN_IF_ERROR(AssignField(setting, message, file_name, config));
  }
  return Status();
}

Result<uint64_t> ParseSize(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, uint64_t>, 5> kUnits = {
      {{"", 1}, {"KiB", kMiB >> 10}, {"MiB", kMiB}, {"GiB", kMiB << 10}, {"TiB", kMiB << 20}}};
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string_view suffix = text.substr(digits);
  if (suffix.starts_with(' ')) suffix.remove_prefix(1);
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(),
                                 [&](const auto& entry) { return entry.first == suffix; });
  if (digits == 0 || unit == kUnits.end()) {
    return InvalidArgument("must be bytes, or a number with KiB, MiB, GiB or TiB");
  }
  ASSIGN_OR_RETURN(const uint64_t number, ParseNumber(text.substr(0, digits)));
  if (number > UINT64_MAX / unit->second) return InvalidArgument("is too large");
  return number * unit->second;
}

LogLevel LogLevelOf(const ServerConfig& config) {
  if (config.log_level == "debug") return LogLevel::kDebug;
  if (config.log_level == "warning") return LogLevel::kWarning;
  if (config.log_level == "error") return LogLevel::kError;
  CHECK(config.log_level == "info");
  return LogLevel::kInfo;
}

}  // namespace cairn
