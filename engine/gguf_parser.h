// The structure of a GGUF file (versions 2 and 3, little-endian), as the ggml project's
// docs/gguf.md specifies it:
//
//   "GGUF" version:u32 tensor_count:u64 key_count:u64
//   keys:    { name:string type:u32 value }        string = length:u64 bytes, no terminator
//   tensors: { name:string dims:u32 dim:u64... type:u32 offset:u64 }
//   padding to a multiple of general.alignment (32 when absent), then the tensors' bytes
//
// Nothing in the file is believed. Every length, count, offset, type and shape is checked against
// the bytes that are there before it is used or allocated for, so that afterwards every view lies
// inside the file and no two tensors overlap. What is wrong is said in one line: which file, which
// key or tensor, at which byte, what was expected and what was found.
//
// A tensor of a type that Cairn does not know is no error until somebody needs it.
// Threads: pure functions of their arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
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
size_t GgufTypeBytes(GgufType type);      // of one element; 0 for strings and arrays

// A metadata value, still in the file's encoding.
struct GgufValue {
  GgufType type;  // of an element; never kArray, since arrays of arrays are refused
  bool is_array = false;
  uint64_t count = 1;                // elements
  std::span<const std::byte> bytes;  // of a single string: without its length
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

  uint64_t element_count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

struct GgufContents {
  uint32_t version = 0;
  std::unordered_map<std::string_view, GgufValue> values;
  std::vector<GgufTensor> tensors;  // in the file's order
  std::unordered_map<std::string_view, size_t> tensor_index;
};

// kInvalidArgument for a broken file, kUnimplemented for another version or byte order. `name`
// stands for the file in messages. The views are into `file`.
Result<GgufContents> ParseGguf(std::span<const std::byte> file, const std::string& name);

}  // namespace cairn
