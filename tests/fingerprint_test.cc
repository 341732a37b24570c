// The fingerprint of a model, and the file that keeps it.
#include "engine/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/ordinary_user.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

Digest FingerprintOf(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "tiny.gguf");
  CHECK(file.ok());
  const auto checkpoint = Checkpoint::FromFile(*std::move(file));
  CHECK(checkpoint.ok());
  return ComputeFingerprint(*checkpoint);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Fingerprint, CoversWhatTheForwardPassReads) {
  const GgufWriter original = TinyModel({});
  const Digest fingerprint = FingerprintOf(original);
  EXPECT_EQ(FingerprintOf(TinyModel({})), fingerprint);
  EXPECT_NE(FingerprintOf(TinyModel({.seed = 2})), fingerprint);
  EXPECT_NE(FingerprintOf(TinyModel({.rope_base = 20000})), fingerprint);
  EXPECT_NE(FingerprintOf(TinyModel({.rope_linear_factor = 2})), fingerprint);
  EXPECT_NE(FingerprintOf(TinyModel({.rope_factors = std::vector<float>(8, 2.0f)})), fingerprint);
  EXPECT_NE(FingerprintOf(TinyModel({.type = TensorType::kQ4_0})), fingerprint);

  GgufWriter epsilon = original;
  epsilon.SetF32("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  EXPECT_NE(FingerprintOf(epsilon), fingerprint);
  for (const char* name : {"token_embd.weight", "blk.1.ffn_norm.weight", "blk.1.ffn_down.weight"}) {
    GgufWriter changed = original;
    changed.tensor(name).data.back() ^= 1;
    EXPECT_NE(FingerprintOf(changed), fingerprint) << name;
  }
  GgufWriter swapped = original;
  swapped.tensor("blk.0.ffn_up.weight").name = "blk.0.ffn_gate.weight";
  swapped.tensor("blk.0.ffn_gate.weight").name = "blk.0.ffn_up.weight";
  EXPECT_NE(FingerprintOf(swapped), fingerprint);
}

TEST(Fingerprint, LeavesOutTheRest) {
  const GgufWriter original = TinyModel({});
  GgufWriter changed = original;
  changed.SetString("general.name", "Another");
  changed.SetString("tokenizer.chat_template", "");
  changed.SetU32("llama.context_length", 99);
  const GgufWriter::Tensor moved = changed.tensor("token_embd.weight");
  changed.RemoveTensor(moved.name);
  changed.AddTensor(moved.name, moved.type_id, moved.dims, moved.data);
  EXPECT_EQ(FingerprintOf(changed), FingerprintOf(original));
}

TEST(Fingerprint, ExtensionIsPartOfIt) {
  const Digest weights = {1, 2};
  EXPECT_EQ(ExtendedFingerprint(weights, 1), weights);
  EXPECT_NE(ExtendedFingerprint(weights, 2), weights);
  EXPECT_NE(ExtendedFingerprint(weights, 2), ExtendedFingerprint(weights, 4));
}

class FingerprintFile : public testing::Test {
 protected:
  FingerprintFile() { WriteTinyModel(model_); }

  Digest Cached() const {
    const auto checkpoint = Checkpoint::Open(model_);
    CHECK(checkpoint.ok());
    return CachedFingerprint(*checkpoint);
  }

  // The file as it is written, but with another digest: whoever believes it gives itself away.
  std::string Forged(const Digest& digest) const {
    std::string line = ReadAll(cache_);
    line.resize(line.rfind(' '));
    line.replace(line.rfind(' ') + 1, 32, digest.ToHex());
    return line + " " + DigestOf(line).ToHex() + "\n";
  }

  const ScratchFolder folder_;
  const std::string model_ = folder_.File("tiny.gguf");
  const std::string cache_ = model_ + ".fingerprint";
  const Digest true_ = FingerprintOf(TinyModel({}));
  const Digest false_ = {0x0123456789abcdef, 0xfedcba9876543210};
};

TEST_F(FingerprintFile, IsWrittenAndBelieved) {
  EXPECT_EQ(Cached(), true_);
  EXPECT_NE(ReadAll(cache_).find(true_.ToHex()), std::string::npos);
  EXPECT_EQ(Cached(), true_);
  WriteFile(cache_, Forged(false_));
  EXPECT_EQ(Cached(), false_);
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    ++files;
  }
  EXPECT_EQ(files, 2u);  // nothing temporary is left
}

TEST_F(FingerprintFile, IsIgnoredForAnotherFile) {
  Cached();
  const std::string forged = Forged(false_);

  WriteFile(cache_, forged);
  const auto time = std::filesystem::last_write_time(model_);
  std::filesystem::last_write_time(model_, time + std::chrono::nanoseconds(1000));
  EXPECT_EQ(Cached(), true_);

  WriteFile(cache_, forged);
  std::filesystem::copy_file(model_, folder_.File("copy"));
  std::filesystem::rename(folder_.File("copy"), model_);
  std::filesystem::last_write_time(model_, time);
  EXPECT_EQ(Cached(), true_);  // the same size and time, but another inode

  std::ofstream(model_, std::ios::app) << "padding";
  std::filesystem::last_write_time(model_, time);
  EXPECT_EQ(Cached(), true_);
}

TEST_F(FingerprintFile, IsIgnoredWhenDamaged) {
  Cached();
  const std::string good = ReadAll(cache_);
  const std::string forged = Forged(false_);
  for (size_t i = 0; i < forged.size(); ++i) {
    std::string damaged = forged;
    damaged[i] ^= 1;
    WriteFile(cache_, damaged);
    ASSERT_EQ(Cached(), true_) << i;
    ASSERT_EQ(ReadAll(cache_), good) << i;
    WriteFile(cache_, forged.substr(0, i));
    ASSERT_EQ(Cached(), true_) << i;
  }
  WriteFile(cache_, forged + "x");
  EXPECT_EQ(Cached(), true_);
  WriteFile(cache_, std::string(100'000, 'x'));
  EXPECT_EQ(Cached(), true_);
}

TEST_F(FingerprintFile, NeedNotBeWritable) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0555));
  {
    const OrdinaryUser user;
    EXPECT_EQ(Cached(), true_);
  }
  EXPECT_FALSE(std::filesystem::exists(cache_));
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
}

}  // namespace
}  // namespace cairn
