// Any bytes as a record and as a table of contents, as they are and with a digest that fits: they
// are what they look like, byte for byte, or there is one line that says what is wrong with them.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "offload/block_record.h"
#include "offload/byte_fields.h"
#include "offload/segment_contents.h"

namespace cairn {
namespace {

void CheckMessage(const Status& status, std::string_view beginning) {
  CHECK(status.ok() || status.message().starts_with(beginning));
  CHECK(status.message().find('\n') == std::string::npos);
}

void CheckRecord(std::string_view bytes) {
  const auto record = DecodeRecord(std::as_bytes(std::span(bytes)));
  CheckMessage(record.status(), "record: ");
  if (!record.ok()) return;
  const RecordHeader& header = record->header;
  CHECK(ExpectRecord(header, header.origin, header.block).ok());
  const EncodedRecord again = EncodeRecord(header.origin, header.block, record->payload);
  CHECK(again.size() == bytes.size());
  // What fills the header up is not read, so it may be anything.
  CHECK(bytes.starts_with(std::string_view(again.header).substr(0, 104)));
  CHECK(AsText(record->payload) == AsText(again.payload));
}

void CheckContents(std::string_view bytes) {
  const auto contents = ParseContents(bytes);
  CheckMessage(contents.status(), "table of contents: ");
  if (contents.ok()) CHECK(EncodeContents(*contents) == bytes);
}

void Run(std::string_view input) {
  CheckMessage(ParseRecordHeader(std::as_bytes(std::span(input))).status(), "record: ");
  std::string fitting(input);
  AppendField(fitting, DigestOf(input));
  for (const std::string_view bytes : {input, std::string_view(fitting)}) {
    CheckRecord(bytes);
    CheckContents(bytes);
  }
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
