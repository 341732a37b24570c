#include "offload/direct_writer.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/rng.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

std::string SomeBytes(size_t size) {
  std::string bytes;
  for (Rng rng(size); bytes.size() < size;) bytes += static_cast<char>(rng.Next());
  return bytes;
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(DirectWriter, WritesWhatItWasGiven) {
  const ScratchFolder folder;
  const std::string path = folder.File("file");
  constexpr size_t kBuffer = 1 << 20;  // sizes on both sides of sectors and buffers
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097},
                            kBuffer - 1, kBuffer, kBuffer + 1, 3 * kBuffer, 4 * kBuffer + 5}) {
    const std::string bytes = SomeBytes(size);
    DirectWriter writer(path);  // over what was there before
    Rng rng(7);
    for (size_t at = 0; at < size;) {
      const size_t part = std::min(size - at, 1 + rng.Below(400'000));
      EXPECT_EQ(writer.Append(std::as_bytes(std::span(bytes).subspan(at, part))), 0);
      at += part;
    }
    EXPECT_EQ(writer.size(), size);
    EXPECT_EQ(writer.Sync(), 0);
    EXPECT_TRUE(Content(path) == bytes) << size;
  }
}

TEST(DirectWriter, SaysWhatWentWrong) {
  const ScratchFolder folder;
  EXPECT_EQ(DirectWriter(folder.File("no/file")).error(), ENOENT);
  DirectWriter full("/dev/full");
  const std::string bytes = SomeBytes(5 << 20);
  EXPECT_EQ(full.Append(std::as_bytes(std::span(bytes))), ENOSPC);
  EXPECT_EQ(full.Append(std::as_bytes(std::span(bytes))), ENOSPC);
  EXPECT_EQ(full.Sync(), ENOSPC);
}

TEST(DirectWriter, MayEndWithoutASync) {
  const ScratchFolder folder;
  for (const size_t size : {size_t{100}, size_t{3} << 20}) {
    DirectWriter writer(folder.File("file"));
    const std::string bytes = SomeBytes(size);
    EXPECT_EQ(writer.Append(std::as_bytes(std::span(bytes))), 0);
  }
}

}  // namespace
}  // namespace cairn
