// A GGUF file (versions 2 and 3, little-endian): metadata by key, tensors by name. The format is
// the one that the ggml project's docs/gguf.md specifies:
//
//   "GGUF" version:u32 tensor_count:u64 key_count:u64
//   keys:    { name:string type:u32 value }        string = length:u64 bytes, no terminator
//   tensors: { name:string dims:u32 dim:u64... type:u32 offset:u64 }
//   padding to a multiple of general.alignment (32 when absent), then the tensors' bytes
//
// Nothing in the file is believed. Parse checks every length, count, offset, type and shape against
// the bytes that are there before it uses or allocates for it, so that afterwards every view it
// hands out lies inside the file and no two tensors overlap. What is wrong is said in one line:
// which file, which key or tensor, at which byte, what was expected and what was found.
//
// A tensor of a type that Cairn does not know is no error until somebody needs it.
// Threads: immutable, any thread. Views live as long as the GgufFile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/mapped_file.h"
#include "kernels/ops.h"

namespace cairn {

// Types of metadata values, with the numbers of the format.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
const char* GgufTypeName(GgufType type);  // "u32", "string"

// A metadata value, still in the file's encoding: one element, or an array of `count`.
struct GgufValue {
  GgufType type;  // of an element; never kArray, since arrays of arrays are refused
  bool is_array = false;
  uint64_t count = 1;
  std::span<const std::byte> bytes;
};

inline constexpr uint32_t kGgufDimsMax = 4;

struct GgufTensor {
  std::string_view name;
  uint32_t type_id = 0;            // the format's number
  std::optional<TensorType> type;  // none: a type that Cairn does not know; `bytes` is empty then
  uint32_t dim_count = 0;          // 1..kGgufDimsMax
  std::array<uint64_t, kGgufDimsMax> dims = {1, 1, 1, 1};  // dims[0] varies fastest; unused are 1
  uint64_t file_offset = 0;                                // of the first byte
  std::span<const std::byte> bytes;
};

// "F32", or "type 14" for one that Cairn does not know.
std::string TensorTypeText(const GgufTensor& tensor);
// "[576, 192]", in the file's order.
std::string ShapeText(const GgufTensor& tensor);

class GgufFile {
 public:
  // Maps and parses. What MappedFile::Open can say, and kInvalidArgument for a broken file or
  // kUnimplemented for one of another version or byte order.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path);

  // Parses bytes in memory, which must outlive the GgufFile. `name` stands for the path in
  // messages.
  static Result<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes,
                                                 std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  size_t size_bytes() const { return bytes_.size(); }
  // None for a file that was parsed from memory.
  std::optional<FileIdentity> identity() const;

  // Metadata. Integers convert to the type that is asked for when the value fits. kNotFound when
  // the key is absent, kInvalidArgument when its value is of another kind. With `absent`, that
  // value stands in for an absent key.
  bool Has(std::string_view key) const { return values_.contains(key); }
  Result<uint32_t> GetU32(std::string_view key) const;
  Result<uint32_t> GetU32(std::string_view key, uint32_t absent) const;
  Result<float> GetF32(std::string_view key) const;
  Result<float> GetF32(std::string_view key, float absent) const;
  Result<bool> GetBool(std::string_view key) const;
  Result<bool> GetBool(std::string_view key, bool absent) const;
  Result<std::string_view> GetString(std::string_view key) const;
  Result<std::string_view> GetString(std::string_view key, std::string_view absent) const;
  Result<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  Result<std::vector<int32_t>> GetI32s(std::string_view key) const;
  Result<std::vector<float>> GetF32s(std::string_view key) const;

  // In the order of the file.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  // Null when there is none of that name.
  const GgufTensor* FindTensor(std::string_view name) const;

  // Lets go of the resident pages of `range`, a part of some tensor's bytes, for example once the
  // tensor has been repacked. Nothing is lost: touching them again reads them again.
  void ReleasePages(std::span<const std::byte> range) const;

 private:
  friend class GgufParser;  // fills the fields below, in gguf_parser.cc
  GgufFile() = default;
  Result<const GgufValue*> Find(std::string_view key) const;
  Status WrongType(std::string_view key, const GgufValue& value, std::string_view expected) const;

  std::string name_;
  std::optional<MappedFile> mapping_;
  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace cairn
