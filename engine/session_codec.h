// The bytes of a session on a disk. A record is a version, fields in a fixed order, and a checksum
// over both; numbers are little-endian, texts and lists have their length in front. What an encoder
// writes, its decoder reads back equal.
//
//   settings    what changes seldom: id, serial, creation, seed, and everything that a user sets
//   progress    what changes with every token: counts, digest of the tokens, times
//   ledger      what is of no one session: the next serial, and how long servers have lived
//
// Decoding trusts nothing: every error is kDataLoss and says what was expected where. A record of
// another version is refused, whatever is in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/session.h"

namespace cairn {

std::string EncodeSettings(const Session& session);
// Sets the fields that EncodeSettings writes, and no others.
Status DecodeSettings(std::string_view record, Session& session);

struct SessionProgress {
  uint64_t serial = 0;
  uint64_t token_count = 0;
  uint64_t token_digest = 0;
  int64_t computed_token_count = 0;
  Clock::Wall update_time;
  Clock::Wall last_use_time;
  std::chrono::nanoseconds last_use_lived{0};
  friend bool operator==(const SessionProgress&, const SessionProgress&) = default;
};
SessionProgress ProgressOf(const Session& session);
std::string EncodeProgress(const SessionProgress& progress);
Result<SessionProgress> DecodeProgress(std::string_view record);

struct SessionLedger {
  uint64_t next_serial = 1;
  std::chrono::nanoseconds lived{0};
  friend bool operator==(const SessionLedger&, const SessionLedger&) = default;
};
std::string EncodeLedger(const SessionLedger& ledger);
Result<SessionLedger> DecodeLedger(std::string_view record);

// Tokens are four bytes each, without a frame: their digest is in the progress.
std::string EncodeTokens(std::span<const uint32_t> tokens);
// kDataLoss unless the size is a multiple of four.
Status DecodeTokens(std::string_view bytes, std::vector<uint32_t>& tokens);

}  // namespace cairn
