// cairnd: configuration -> engine (backend, model, tokenizer, block pool) -> server, and the end of
// them in the reverse order.
#include <google/protobuf/stubs/logging.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/load.h"
#include "engine/message_text.h"
#include "engine/session_journal.h"
#include "engine/session_store.h"
#include "kernels/backend_choice.h"
#include "offload/data_directory.h"
#include "offload/durable_store.h"
#include "offload/rocksdb_spill_store.h"
#include "service/end_watch.h"
#include "service/listen_address.h"
#include "service/server.h"
#include "service/server_config.h"

namespace cairn {
namespace {

constexpr const char* kDefaultModel = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";

int Fail(const Status& status) {
  std::fprintf(stderr, "cairnd: %s\n", status.message().c_str());
  return 1;
}

// The model that `./cairn setup` fetches: below the working directory, or in the source tree.
Result<std::string> FindDefaultModel() {
  for (const std::filesystem::path& root :
       {std::filesystem::path("."), std::filesystem::path(CAIRN_SOURCE_DIR)}) {
    const std::filesystem::path path = (root / kDefaultModel).lexically_normal();
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path.string();
  }
  return NotFound("no model: give --model FILE, or run ./cairn setup to fetch the default one");
}

// The path of a file in the folder of the program that runs.
std::string BesideThisProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / name).string();
}

Result<LoadOptions> ToLoadOptions(const ServerConfig& config) {
  LoadOptions options;
  options.model_path = config.model;
  if (options.model_path.empty()) {
    ASSIGN_OR_RETURN(options.model_path, FindDefaultModel());
  }
  options.thread_count = static_cast<uint32_t>(config.threads);
  options.backend = *ParseBackendKind(config.backend);
  options.cuda_plugin = BesideThisProgram("libcairn_cuda.so");
  options.mode = config.compute == "fast" ? ComputeMode::kFast : ComputeMode::kExact;
  if (!config.instruction_set.empty()) options.instruction_set = config.instruction_set;
  options.device_memory_bytes = config.device_memory_bytes;
  options.host_memory_bytes = config.host_memory_bytes;
  options.host_in_place = config.host_blocks == "in-place";
  options.lock_host = config.host_pages == "locked";
  options.host_bandwidth_limit = config.host_bandwidth_limit;
  options.context_length = static_cast<uint32_t>(config.context_length);
  options.trace_path = config.trace_file;
  options.calibrate = config.recalibrate ? Calibrate::kAnew : Calibrate::kOnce;
  options.restore_policy = *ParseRestorePolicy(config.restore_policy);
  options.restore_cut_share = static_cast<double>(config.restore_cut_percent) / 100;
  options.engine.concurrent_max = static_cast<uint32_t>(config.max_concurrent);
  options.engine.prefill_chunk = static_cast<uint32_t>(config.prefill_chunk_tokens);
  options.engine.restore_share = static_cast<uint32_t>(config.restore_share_percent);
  options.engine.max_tokens_default = static_cast<uint32_t>(config.max_tokens_default);
  return options;
}

struct Addresses {
  ListenAddress listen;
  std::optional<ListenAddress> health_listen;
};

// What is found in use now is said before the model is loaded, which takes its time.
Result<Addresses> FreeAddresses(const ServerConfig& config) {
  Addresses addresses;
  ASSIGN_OR_RETURN(addresses.listen, ParseListenAddress("--listen", config.listen));
  if (!config.health_listen.empty()) {
    ASSIGN_OR_RETURN(addresses.health_listen,
                     ParseListenAddress("--health-listen", config.health_listen));
  }
  RETURN_IF_ERROR(CheckCanListen("--listen", addresses.listen));
  if (addresses.health_listen) {
    RETURN_IF_ERROR(CheckCanListen("--health-listen", *addresses.health_listen));
  }
  return addresses;
}

// The directory that outlives the process; null when none is wanted.
Result<std::unique_ptr<DataDirectory>> OpenDirectory(const ServerConfig& config) {
  if (config.disk_dir.empty()) return std::unique_ptr<DataDirectory>();
  return DataDirectory::Open(config.disk_dir);
}

// What the file system has left for blocks, and what those take that are there; nothing when it
// does not say.
std::optional<uint64_t> RoomForBlocks(const std::string& path) {
  std::error_code error;
  uint64_t bytes = std::filesystem::space(path, error).available;
  if (error) return std::nullopt;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
    std::error_code not_a_file;
    const uint64_t size = entry.file_size(not_a_file);
    if (!not_a_file) bytes += size;
  }
  return bytes;
}

// The disk tier below the directory, for a model that is not known yet. Empty when the disk is so
// full that a cache would be in the way of the sessions.
SpillOpener OpenBlocksIn(const DataDirectory& directory, const ServerConfig& config) {
  constexpr uint64_t kDiskMemoryMin = uint64_t{64} << 20;
  // By itself a cache takes half of the room: it need not be larger than this to hold some thousand
  // sessions, and whoever wants more says so.
  constexpr uint64_t kDiskMemoryMax = uint64_t{64} << 30;
  SpillStoreConfig spill{.directory = directory.blocks_path(),
                         .quota_bytes = config.disk_memory_bytes,
                         .bandwidth_limit = config.disk_bandwidth_limit};
  const std::optional<uint64_t> room = RoomForBlocks(spill.directory);
  if (room && spill.quota_bytes > *room) {
    LogWarning("--disk-memory: more than there is room for in " + spill.directory + ", which is " +
               Grouped(*room >> 20) + " MiB; a disk that is full takes no sessions either");
  }
  if (spill.quota_bytes == 0) {
    spill.quota_bytes = std::min(room.value_or(0) / 2, kDiskMemoryMax);
    if (spill.quota_bytes < kDiskMemoryMin) {
      LogWarning("no disk tier: " + spill.directory +
                 " has too little room; --disk-memory forces one");
      return nullptr;
    }
  }
  return [spill](const Digest& fingerprint, const KvLayout& layout, std::function<void()> wake) {
    return OpenSpillStore(spill, fingerprint, layout, std::move(wake));
  };
}

// Finds the sessions of earlier servers, and has those of this one kept as --durability says; a
// line for people.
Result<std::string> OpenSessions(const DataDirectory* directory, const ServerConfig& config,
                                 const Clock& clock, EngineParts& parts) {
  if (directory == nullptr) return std::string("sessions end with the process (no --disk-dir)");
  if (config.durability == "none") {
    return std::string("sessions end with the process (--durability none)");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<DurableStore> store,
                   OpenDurableStore(directory->sessions_path(), clock, kNamesPrefix));
  ASSIGN_OR_RETURN(StoredSessions stored,
                   LoadSessions(*store, VocabularyDigest(*parts.tokenizer), parts.model_info.name));
  uint64_t token_count = 0;
  for (const StoredSession& session : stored.sessions) token_count += session.session.tokens.size();
  const bool synced = config.durability == "sync";
  const std::string line = "sessions " + Grouped(stored.sessions.size()) + " of " +
                           Grouped(token_count) + " tokens in " + directory->sessions_path() +
                           (synced ? ", synced before each answer"
                                   : ", written before each answer and synced by the system");
  parts.journal = std::make_unique<SessionJournal>(
      std::move(store), synced ? CommitSync::kDevice : CommitSync::kSystem, std::move(stored),
      clock);
  return line;
}

// For models that take long: how far it is, every two seconds.
void ShowProgress(double share) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPeriod = std::chrono::seconds(2);
  static Clock::time_point next = Clock::now() + kPeriod;
  if (Clock::now() < next) return;
  next = Clock::now() + kPeriod;
  LogInfo("preparing weights: " + std::to_string(static_cast<int>(share * 100)) + " %");
}

// Large pieces of memory go back to the system when they are freed. By itself the C library keeps
// ever larger ones, up to 32 MiB in the heap of each thread, once a request was as large.
void ReturnLargePieces() {
#ifdef __GLIBC__
  constexpr int kBytes = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
#endif
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Waits for the first SIGTERM or SIGINT, or until the device is lost; a second signal then ends the
// process at once.
void WaitForStop(const Engine& engine) {
  constexpr timespec kLook = {.tv_sec = 0, .tv_nsec = 100'000'000};
  const sigset_t signals = StopSignals();
  while (engine.lost().ok() && sigtimedwait(&signals, nullptr, &kLook) < 0) {
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// What is in memory and worth it goes to the disk, as far as the time permits.
void WriteIdleBlocks(Engine& engine) {
  constexpr auto kPatience = std::chrono::seconds(10);
  auto written = std::make_shared<std::promise<void>>();
  engine.SpillIdle([written] { written->set_value(); });
  if (written->get_future().wait_for(kPatience) != std::future_status::ready) {
    LogWarning("stopping: not every KV block was written to the disk in time");
  }
}

// Something does not let the process end.
[[noreturn]] void EndNow(const std::string& why) {
  LogError("stopping: " + why + "; sessions are as they were last answered");
  std::fflush(nullptr);
  _exit(1);
}

// Ends the streams, and makes durable what they and others have changed. `end` watches from now on.
void Stop(Server& server, Engine& engine, std::chrono::seconds grace, bool has_disk,
          std::optional<EndWatch>& end) {
  const Status lost = engine.lost();
  if (lost.ok()) {
    LogInfo("stopping: running streams have " + std::to_string(grace.count()) + " s");
  } else {
    LogError("stopping: " + lost.message() + "; sessions are as they were last answered");
    grace = std::chrono::seconds(0);  // they have ended already
  }
  end.emplace(
      EndLimits{.grace = grace},
      [&engine] {
        return DiskWait{engine.DiskSilence(), engine.UnwrittenSessions()};
      },
      EndNow);
  server.Drain(grace);
  if (lost.ok() && has_disk) WriteIdleBlocks(engine);
  engine.Close();
  end->SessionsAreWritten();
}

int Serve(const ServerConfig& config) {
  ReturnLargePieces();
  SetLogLevel(LogLevelOf(config));
  google::protobuf::SetLogHandler(nullptr);  // bad requests are answered, not logged
  // Blocked before any thread starts, so that all of them leave these signals to WaitForStop.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow fails its write, not the process

  const Result<Addresses> addresses = FreeAddresses(config);
  if (!addresses.ok()) return Fail(addresses.status());
  Result<LoadOptions> options = ToLoadOptions(config);
  if (!options.ok()) return Fail(options.status());
  const Result<std::unique_ptr<DataDirectory>> directory = OpenDirectory(config);
  if (!directory.ok()) return Fail(directory.status());
  if (*directory != nullptr) options->open_spill = OpenBlocksIn(**directory, config);
  const SystemClock clock;
  Result<LoadedEngine> loaded = LoadEngine(*options, clock, ShowProgress);
  if (!loaded.ok()) return Fail(loaded.status());
  const Result<std::string> sessions = OpenSessions(directory->get(), config, clock, loaded->parts);
  if (!sessions.ok()) return Fail(sessions.status());
  loaded->summary.push_back(*sessions);
  for (const std::string& warning : loaded->warnings) LogWarning(warning);

  std::optional<EndWatch> end;  // outlives what may hang
  Engine engine(std::move(loaded->parts), loaded->config, clock);
  Result<std::unique_ptr<Server>> server =
      Server::Start({.listen = addresses->listen,
                     .health_listen = addresses->health_listen,
                     .message_bytes_max = static_cast<uint32_t>(config.message_bytes_max),
                     .request_memory_max = config.request_memory_bytes,
                     .pending_tokens_max = static_cast<uint32_t>(config.stream_buffer_tokens),
                     .stream_interval = std::chrono::milliseconds(config.stream_interval_ms)},
                    engine);
  if (!server.ok()) return Fail(server.status());

  for (const std::string& line : loaded->summary) std::printf("%s\n", line.c_str());
  if (addresses->health_listen) {
    std::printf("health on %s\n", (*server)->health_address().c_str());
  }
  std::printf("listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);

  WaitForStop(engine);
  Stop(**server, engine, std::chrono::seconds(config.drain_grace_seconds), *directory != nullptr,
       end);
  return engine.lost().ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  const Result<CommandLine> line = ParseCommandLine(argc, argv);
  if (!line.ok()) return Fail(line.status());
  if (line->text) {
    std::fputs(line->text->c_str(), stdout);
    return 0;
  }
  return Serve(line->config);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
