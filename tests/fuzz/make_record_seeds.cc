// Writes the seeds of record_fuzz: make_record_seeds FOLDER. They lack their digests, which the
// fuzzer adds.
#include <cstdio>
#include <fstream>
#include <string>

#include "offload/block_record.h"
#include "offload/byte_fields.h"
#include "offload/segment_contents.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

void WriteSeeds(const std::string& folder) {
  const RecordOrigin origin = OriginOf({1, 2}, "layout");
  for (const uint32_t token_count : {1u, 16u, 64u}) {
    const auto payload = NumberedPayload(token_count, 8);
    const EncodedRecord record = EncodeRecord(origin, NumberedBlock(3, token_count), payload);
    std::ofstream(folder + "/record_" + std::to_string(token_count))
        << record.header << AsText(record.payload);
  }
  std::string contents = EncodeContents(
      {origin, {{RecordId(1), NumberedBlock(1, 1)}, {RecordId(2), NumberedBlock(2, 3)}}});
  contents.resize(contents.size() - sizeof(Digest));
  std::ofstream(folder + "/contents") << contents;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  cairn::WriteSeeds(argv[1]);
  return 0;
}
