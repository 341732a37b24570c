// Any bytes as the records of a session, with a checksum that is right: they are read, and are then
// what an encoder writes, or they are refused as damaged. The first byte chooses the record.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "engine/session_codec.h"

namespace cairn {
namespace {

std::string WithChecksum(std::string_view input) {
  std::string record(1, '\1');  // the version
  record += input;
  const uint64_t checksum = DigestOf(record).low;
  return record.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
}

void CheckRefusal(const Status& status) {
  CHECK(status.code() == Code::kDataLoss && !status.message().empty());
}

void Run(std::string_view input) {
  if (input.empty()) return;
  const uint8_t choice = static_cast<uint8_t>(input.front());
  input.remove_prefix(1);
  const std::string record = choice & 4 ? std::string(input) : WithChecksum(input);
  switch (choice & 3) {
    case 0: {
      Session session;
      const Status read = DecodeSettings(record, session);
      if (!read.ok()) return CheckRefusal(read);
      CHECK(EncodeSettings(session) == record);
      return;
    }
    case 1: {
      const Result<SessionProgress> read = DecodeProgress(record);
      if (!read.ok()) return CheckRefusal(read.status());
      CHECK(EncodeProgress(*read) == record);
      return;
    }
    case 2: {
      const Result<SessionLedger> read = DecodeLedger(record);
      if (!read.ok()) return CheckRefusal(read.status());
      CHECK(EncodeLedger(*read) == record);
      return;
    }
    default: {
      std::vector<uint32_t> tokens;
      const Status read = DecodeTokens(input, tokens);
      CHECK(read.ok() == (input.size() % 4 == 0));
      if (read.ok()) CHECK(EncodeTokens(tokens) == input);
    }
  }
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
