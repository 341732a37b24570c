#include "engine/fingerprint.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "engine/small_file.h"

namespace cairn {
namespace {

constexpr int kVersion = 1;

template <class T>
void AddValue(DigestStream& digest, const T& value) {
  static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
  digest.Add(std::as_bytes(std::span(&value, 1)));
}

// Everything in the line but its checksum: what the digest is of, and the digest.
std::string CacheLine(const FileIdentity& identity, const std::string& hex) {
  return "cairn-fingerprint " + std::to_string(kVersion) + " " +
         std::to_string(identity.size_bytes) + " " + std::to_string(identity.modified_ns) + " " +
         std::to_string(identity.inode) + " " + hex;
}

std::optional<Digest> ParseHex(const std::string& hex) {
  if (hex.size() != 32) return std::nullopt;
  std::array<uint64_t, 2> words = {0, 0};
  for (size_t i = 0; i < hex.size(); ++i) {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    const size_t digit = kDigits.find(hex[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    words[i / 16] = words[i / 16] << 4 | digit;
  }
  return Digest{words[0], words[1]};
}

// The digest in the file at `path`, if the file is exactly what is written for it.
std::optional<Digest> Load(const std::string& path, const FileIdentity& identity) {
  const std::string text = ReadSmallFile(path, 256);  // more than a whole file needs
  const std::string before = CacheLine(identity, "");
  if (!text.starts_with(before)) return std::nullopt;
  const std::optional<Digest> digest = ParseHex(text.substr(before.size(), 32));
  if (!digest || text != LineWithDigest(CacheLine(identity, digest->ToHex()))) return std::nullopt;
  return digest;
}

}  // namespace

Digest ComputeFingerprint(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  DigestStream digest;
  AddValue(digest, kVersion);
  for (const uint32_t count :
       {config.layer_count, config.width, config.head_count, config.kv_head_count, config.head_dim,
        config.ffn_width, config.vocabulary_size, config.rope_dim}) {
    AddValue(digest, count);
  }
  AddValue(digest, config.rope_base);
  AddValue(digest, config.rope_linear_factor);
  AddValue(digest, config.rms_epsilon);

  // By name, so that the order of the file does not matter. The factors of RoPE are a tensor too.
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : checkpoint.file().tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &GgufTensor::name);
  for (const GgufTensor* tensor : tensors) {
    AddValue(digest, tensor->name.size());
    digest.Add(tensor->name);
    AddValue(digest, tensor->type_id);
    for (const uint64_t dim : tensor->dims) AddValue(digest, dim);
    digest.Add(tensor->bytes);
  }
  return digest.Finish();
}

Digest CachedFingerprint(const Checkpoint& checkpoint) {
  const std::optional<FileIdentity> identity = checkpoint.file().identity();
  if (!identity) return ComputeFingerprint(checkpoint);
  const std::string path = checkpoint.file().name() + ".fingerprint";
  if (const std::optional<Digest> digest = Load(path, *identity)) return *digest;
  const Digest digest = ComputeFingerprint(checkpoint);
  ReplaceSmallFile(path, LineWithDigest(CacheLine(*identity, digest.ToHex())));
  return digest;
}

Digest ExtendedFingerprint(const Digest& weights, double extension) {
  if (extension == 1) return weights;
  DigestStream digest;
  AddValue(digest, weights.high);
  AddValue(digest, weights.low);
  AddValue(digest, extension);
  return digest.Finish();
}

}  // namespace cairn
