// A seeded run of the engine in a hard world: a pool that is too small, passes that stall, logits
// that are not numbers, clients that are slow, dead, late or change their minds; time passes only
// when the run says so. One seed replays one run.
//
// Everything that the engine says is compared with a model of it: a session is a vector of tokens,
// a stream the answer of a LoneDecoder. After every tick:
// (1) the engine's own invariants hold, and without streams and pins no block is held;
// (2) every stream ends exactly once, with the status that what happened to it calls for;
// (3) every session has the tokens that the model has;
// (4) while a stream is wanted and its reader reads, somebody gets on within kStallTicksMax ticks;
// (5) a short request of the highest priority has its first token three steps after it came, or
//     within kStallTicksMax where room for it is behind copies;
// (6) a reader that is full hears nothing more until it has read, and a stream that nobody has read
//     for longer than config.paused_max holds no place.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/engine_core.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/hooked_engine.h"
#include "tests/fakes/lone_decoder.h"
#include "tests/simulated_reader.h"

namespace cairn {

// What happened in a run, so that a test can see that all of it did.
struct SimulationCounts {
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t ended_ok = 0;
  int64_t probes = 0;    // short requests of the highest priority
  int64_t bad_rows = 0;  // logits that were spoilt
  int64_t expired = 0;   // sessions
  int64_t pauses = 0;    // readers that were full
  int64_t compared_blocks = 0;
  int64_t reloaded_tokens = 0;  // from the host's pool
  int64_t stall_ticks_max = 0;
  std::map<Code, int64_t> failed;   // streams that ended so
  std::map<Code, int64_t> refused;  // calls

  SimulationCounts& operator+=(const SimulationCounts& other);
  void Print() const;
};

struct SimulatedWorld {
  std::string model_path;     // and the lone decoder's
  BackendMaker make_backend;  // empty: the CPU's
  // Blocks go to the host's memory and come back, by copies that may take a tick or two. The
  // backend is not one that reads the host's memory.
  bool has_host_pool = false;
  uint32_t device_blocks_max = 30;  // of the pool, which has at least 6
};

class Simulation {
 public:
  Simulation(uint64_t seed, const SimulatedWorld& world, LoneDecoder& lone);
  ~Simulation();

  // Ticks, with a drain now and then and at the end; stops at the first failure.
  void Run(int tick_count);
  const SimulationCounts& counts() const { return counts_; }

  static constexpr uint32_t kContextLength = 256;
  static constexpr int64_t kStallTicksMax = 60;

 private:
  using Reader = SimulatedReader;
  struct Stream {
    SequenceId id;
    std::shared_ptr<Reader> reader;
    std::string session;            // empty: a one-shot generation
    std::vector<uint32_t> context;  // when it began
    std::vector<uint32_t> content;  // of it, what its session gets with the first token
    size_t start = 0;               // the first position that it is told
    size_t end_count = 0;
    SamplingParams sampling;
    std::optional<Clock::Monotonic> deadline;
    std::optional<int64_t> first_token_by;  // tick
    std::optional<Code> must_end_with;      // something has ended it
    int64_t pauses = 0;                     // as often its reader was full, and since when it is
    Clock::Monotonic paused_since;
  };
  struct Act {
    uint32_t weight;
    void (Simulation::*act)();
  };
  static const std::vector<Act> kActs;

  // What clients do.
  void ActOnce();
  void CreateSession();
  void StartDecode();
  void StartGenerate();
  void StartProbe();
  void Append();
  void Fork();
  void Truncate();
  void Delete();
  void Suspend();
  void Prefetch();
  void Update();
  void CancelOne();
  void ClearCache();
  void Look();

  // What the world does.
  void Tick(bool clients_act);
  void PassTime();
  void ExpireDeadlines();
  void ReadersRead();
  void Drain();

  // What must be true.
  void Harvest();
  void TakeTokens(Stream& stream);
  void CheckEnd(const Stream& stream);
  bool MayFail(const Stream& stream, const Status& status);
  void CheckWorld();
  void CheckProgress();
  void CheckPaused(Clock::Monotonic step_began);
  void CheckBlocks();
  void ExpectCode(const Status& status, Code expected, const char* what);

  EngineConfig MakeConfig();
  OpsHooks MakeHooks();
  std::vector<uint32_t> Prompt(size_t token_max);
  std::string SomeSession();
  SessionSettings SomeSettings();
  Expiration SomeExpiration();
  Stream* StreamOf(const std::string& session);
  Code StreamRefusal() const;  // kOk while there is a place in the queue
  Code AppendRefusal(const std::string& session, size_t count) const;
  Stream NewStream(SamplingParams sampling);
  void EndStream(Stream& stream, Code code);
  uint64_t TotalTokens() const;
  EncodedContent Encode(const std::vector<uint32_t>& tokens);

  Rng rng_;
  FakeClock clock_;
  LoneDecoder& lone_;
  const EngineConfig config_;
  const uint32_t device_blocks_;
  const uint32_t host_blocks_;
  BlockStore* blocks_ = nullptr;
  Digest fingerprint_;
  std::unique_ptr<EngineCore> core_;
  std::unique_ptr<cairn::Stream> reader_stream_;  // of blocks

  std::map<std::string, std::vector<uint32_t>> sessions_;  // the model of them
  std::map<std::string, std::string> salts_;               // of sessions, alive or not
  std::map<SequenceId, Stream> streams_;
  uint64_t next_id_ = 0;
  int64_t tick_ = 0;
  int64_t last_progress_ = 0;  // tick
  int64_t bad_rows_open_ = 0;  // spoilt rows whose streams have not been seen to end
  SimulationCounts counts_;
};

}  // namespace cairn
