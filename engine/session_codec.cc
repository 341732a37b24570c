#include "engine/session_codec.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/digest.h"

namespace cairn {
namespace {

using std::chrono::nanoseconds;

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr uint8_t kVersion = 1;
constexpr size_t kChecksumBytes = sizeof(uint64_t);
// More than any session that is accepted has; so a damaged length never asks for much memory.
constexpr uint32_t kListMax = 4096;

uint64_t ChecksumOf(std::string_view bytes) { return DigestOf(bytes).low; }

Status Damaged(const std::string& why) { return Status(Code::kDataLoss, why); }

// Writes and reads have the same calls, so that one function names the fields for both.
class Writer {
 public:
  Writer() { Field("version", kVersion); }

  template <class T>
  requires std::is_arithmetic_v<T>
  void Field(const char*, T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void Field(const char*, const std::string& text) {
    Field("", static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  void Field(const char*, nanoseconds time) { Field("", int64_t{time.count()}); }
  void Field(const char*, Clock::Wall time) { Field("", nanoseconds(time.time_since_epoch())); }
  template <class T>
  void Field(const char* name, const std::optional<T>& value) {
    Field(name, value.has_value());
    if (value) Field(name, *value);
  }
  template <class T>
  void Field(const char* name, const std::vector<T>& list) {
    Field(name, static_cast<uint32_t>(list.size()));
    for (const T& item : list) Field(name, item);
  }
  template <class K, class V>
  void Field(const char* name, const std::map<K, V>& map) {
    Field(name, static_cast<uint32_t>(map.size()));
    for (const auto& [key, value] : map) {
      Field(name, key);
      Field(name, value);
    }
  }

  std::string Finish() && {
    Field("", ChecksumOf(bytes_));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// After the first error every field stays as it is, and Finish tells of that error.
class Reader {
 public:
  explicit Reader(std::string_view record) : left_(record) { Open(); }

  template <class T>
  requires std::is_arithmetic_v<T>
  void Field(const char* name, T& value) {
    if (const char* bytes = Take(name, sizeof value)) std::memcpy(&value, bytes, sizeof value);
  }
  void Field(const char* name, bool& value) {
    uint8_t byte = 0;
    Field(name, byte);
    if (byte > 1) return Fail(std::string(name) + " must be 0 or 1, is " + std::to_string(byte));
    value = byte == 1;
  }
  void Field(const char* name, std::string& text) {
    uint32_t size = 0;
    Field(name, size);
    const char* bytes = Take(name, size);
    if (bytes != nullptr) text.assign(bytes, size);
  }
  void Field(const char* name, nanoseconds& time) {
    int64_t count = 0;
    Field(name, count);
    time = nanoseconds(count);
  }
  void Field(const char* name, Clock::Wall& time) {
    nanoseconds since_epoch{0};
    Field(name, since_epoch);
    time = Clock::Wall(std::chrono::duration_cast<Clock::Wall::duration>(since_epoch));
  }
  template <class T>
  void Field(const char* name, std::optional<T>& value) {
    bool has_value = false;
    Field(name, has_value);
    if (has_value) Field(name, value.emplace());
  }
  template <class T>
  void Field(const char* name, std::vector<T>& list) {
    list.resize(Count(name));
    for (T& item : list) Field(name, item);
  }
  template <class K, class V>
  void Field(const char* name, std::map<K, V>& map) {
    for (uint32_t left = Count(name); left > 0 && error_.empty(); --left) {
      K key{};
      Field(name, key);
      if (!map.empty() && !(map.rbegin()->first < key))
        Fail(std::string(name) + " is not in order");
      Field(name, map[key]);
    }
  }

  void Fail(std::string why) {
    if (error_.empty()) error_ = std::move(why);
  }
  Status Finish() const {
    if (!error_.empty()) return Damaged(error_);
    if (left_.empty()) return Status();
    return Damaged("has " + std::to_string(left_.size()) + " bytes behind its last field");
  }

 private:
  // Version and checksum, before anything else is believed.
  void Open() {
    if (left_.size() < 1 + kChecksumBytes) {
      return Fail("has " + std::to_string(left_.size()) + " bytes, fewer than any record");
    }
    const auto version = static_cast<uint8_t>(left_[0]);
    if (version != kVersion) {
      return Fail("is of version " + std::to_string(version) + ", and this server reads " +
                  std::to_string(kVersion) + " only");
    }
    uint64_t checksum = 0;
    std::memcpy(&checksum, left_.data() + left_.size() - kChecksumBytes, kChecksumBytes);
    left_.remove_suffix(kChecksumBytes);
    if (checksum != ChecksumOf(left_)) return Fail("does not match its checksum");
    left_.remove_prefix(1);
  }

  const char* Take(const char* name, size_t count) {
    if (!error_.empty()) return nullptr;
    if (count > left_.size()) {
      Fail("ends in " + std::string(name) + ", which needs " + std::to_string(count) +
           " bytes and has " + std::to_string(left_.size()));
      return nullptr;
    }
    const char* const bytes = left_.data();
    left_.remove_prefix(count);
    return bytes;
  }
  uint32_t Count(const char* name) {
    uint32_t count = 0;
    Field(name, count);
    if (count > kListMax) Fail(std::string(name) + " has " + std::to_string(count) + " entries");
    return error_.empty() ? count : 0;
  }

  std::string_view left_;
  std::string error_;
};

// A record, or what is wrong with it.
template <class T, class Fields>
Status Read(const char* what, std::string_view record, T& value, const Fields& fields) {
  Reader reader(record);
  fields(reader, value);
  const Status status = reader.Finish();
  return status.ok() ? status : Damaged(std::string(what) + " record " + status.message());
}

// `Params` is const for a writer.
template <class IO, class Params>
void SamplingFields(IO& io, Params& params) {
  io.Field("temperature", params.temperature);
  io.Field("top_p", params.top_p);
  io.Field("top_k", params.top_k);
  io.Field("min_p", params.min_p);
  io.Field("repetition_penalty", params.repetition_penalty);
  io.Field("presence_penalty", params.presence_penalty);
  io.Field("frequency_penalty", params.frequency_penalty);
  io.Field("seed", params.seed);
  io.Field("stop", params.stop);
  io.Field("stop_token_ids", params.stop_token_ids);
  io.Field("ignore_eos", params.ignore_eos);
  io.Field("logit_bias", params.logit_bias);
  io.Field("logprobs", params.logprobs);
}

enum class ExpirationKind : uint8_t { kNever, kMoment, kTimeToLive };

void ExpirationFields(Writer& io, const Expiration& expiration) {
  io.Field("expiration", static_cast<uint8_t>(expiration.index()));
  if (const auto* moment = std::get_if<Clock::Wall>(&expiration)) io.Field("moment", *moment);
  if (const auto* ttl = std::get_if<nanoseconds>(&expiration)) io.Field("ttl", *ttl);
}

void ExpirationFields(Reader& io, Expiration& expiration) {
  uint8_t kind = 0;
  io.Field("expiration", kind);
  switch (static_cast<ExpirationKind>(kind)) {
    case ExpirationKind::kNever:
      expiration = std::monostate();
      return;
    case ExpirationKind::kMoment:
      return io.Field("moment", expiration.emplace<Clock::Wall>());
    case ExpirationKind::kTimeToLive:
      return io.Field("ttl", expiration.emplace<nanoseconds>());
  }
  io.Fail("expiration must be in 0..2, is " + std::to_string(kind));
}

template <class IO, class S>
void SettingsFields(IO& io, S& session) {
  io.Field("id", session.id);
  io.Field("serial", session.serial);
  io.Field("seed", session.seed);
  io.Field("create_time", session.create_time);
  io.Field("parent_id", session.parent_id);
  io.Field("revision", session.revision);
  io.Field("cache_salt", session.cache_salt);
  auto& settings = session.settings;
  io.Field("display_name", settings.display_name);
  ExpirationFields(io, settings.expiration);
  io.Field("priority", settings.priority);
  SamplingFields(io, settings.sampling);
  io.Field("pinned", settings.pinned);
  io.Field("annotations", settings.annotations);
}

template <class IO, class P>
void ProgressFields(IO& io, P& progress) {
  io.Field("serial", progress.serial);
  io.Field("token_count", progress.token_count);
  io.Field("token_digest", progress.token_digest);
  io.Field("computed_token_count", progress.computed_token_count);
  io.Field("update_time", progress.update_time);
  io.Field("last_use_time", progress.last_use_time);
  io.Field("last_use_lived", progress.last_use_lived);
}

template <class IO, class L>
void LedgerFields(IO& io, L& ledger) {
  io.Field("next_serial", ledger.next_serial);
  io.Field("lived", ledger.lived);
}

}  // namespace

std::string EncodeSettings(const Session& session) {
  Writer writer;
  SettingsFields(writer, session);
  return std::move(writer).Finish();
}

Status DecodeSettings(std::string_view record, Session& session) {
  return Read("settings", record, session,
              [](Reader& reader, Session& value) { SettingsFields(reader, value); });
}

SessionProgress ProgressOf(const Session& session) {
  return {.serial = session.serial,
          .token_count = session.tokens.size(),
          .token_digest = session.token_digest,
          .computed_token_count = session.computed_token_count,
          .update_time = session.update_time,
          .last_use_time = session.last_use_time,
          .last_use_lived = session.last_use_lived};
}

std::string EncodeProgress(const SessionProgress& progress) {
  Writer writer;
  ProgressFields(writer, progress);
  return std::move(writer).Finish();
}

Result<SessionProgress> DecodeProgress(std::string_view record) {
  SessionProgress progress;
  RETURN_IF_ERROR(Read("progress", record, progress, [](Reader& reader, SessionProgress& value) {
    ProgressFields(reader, value);
  }));
  return progress;
}

std::string EncodeLedger(const SessionLedger& ledger) {
  Writer writer;
  LedgerFields(writer, ledger);
  return std::move(writer).Finish();
}

Result<SessionLedger> DecodeLedger(std::string_view record) {
  SessionLedger ledger;
  RETURN_IF_ERROR(Read("ledger", record, ledger,
                       [](Reader& reader, SessionLedger& value) { LedgerFields(reader, value); }));
  return ledger;
}

std::string EncodeTokens(std::span<const uint32_t> tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
}

Status DecodeTokens(std::string_view bytes, std::vector<uint32_t>& tokens) {
  if (bytes.size() % sizeof(uint32_t) != 0) {
    return Damaged("tokens have " + std::to_string(bytes.size()) + " bytes, four for each and " +
                   std::to_string(bytes.size() % sizeof(uint32_t)) + " more");
  }
  const size_t before = tokens.size();
  tokens.resize(before + bytes.size() / sizeof(uint32_t));
  if (!bytes.empty()) std::memcpy(tokens.data() + before, bytes.data(), bytes.size());
  return Status();
}

}  // namespace cairn
