#include "engine/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/message_text.h"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they lie");

constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kAlignmentMin = 8;
constexpr uint32_t kAlignmentMax = 1 << 16;
constexpr size_t kKeyBytesMax = 65535;      // the format's limit
constexpr size_t kTensorNameBytesMax = 64;  // the format's limit
// The least that one key and one tensor take in the file: they bound the counts.
constexpr size_t kKeyBytesMin = 8 + 1 + 4 + 1;
constexpr size_t kTensorBytesMin = 8 + 1 + 4 + 8 + 4 + 8;

std::optional<TensorType> KnownTensorType(uint32_t type_id) {
  switch (type_id) {
    case 0:
      return TensorType::kF32;
    case 1:
      return TensorType::kF16;
    case 2:
      return TensorType::kQ4_0;
    case 3:
      return TensorType::kQ4_1;
    case 8:
      return TensorType::kQ8_0;
    case 30:
      return TensorType::kBF16;
    default:
      return std::nullopt;
  }
}

using Bytes = std::span<const std::byte>;

std::string_view AsText(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Parser {
 public:
  Parser(Bytes file, const std::string& name) : file_(file), name_(name) {}

  Result<GgufContents> Parse() {
    ASSIGN_OR_RETURN(const Counts counts, ParseHeader());
    contents_.values.reserve(counts.keys);
    for (uint64_t i = 0; i < counts.keys; ++i) RETURN_IF_ERROR(ParseKey(i));
    RETURN_IF_ERROR(ReadAlignment());
    contents_.tensors.reserve(counts.tensors);
    contents_.tensor_index.reserve(counts.tensors);
    for (uint64_t i = 0; i < counts.tensors; ++i) RETURN_IF_ERROR(ParseTensor(i));
    const uint64_t data_start = (position_ + alignment_ - 1) / alignment_ * alignment_;
    for (GgufTensor& tensor : contents_.tensors) RETURN_IF_ERROR(Place(tensor, data_start));
    RETURN_IF_ERROR(CheckOverlaps());
    return std::move(contents_);
  }

 private:
  Status Fail(const std::string& text) const { return InvalidArgument(name_ + ": " + text); }
  uint64_t left() const { return file_.size() - position_; }
  static std::string AtByte(uint64_t position) { return " at byte " + Grouped(position); }

  Status PastTheEnd(const std::string& what, uint64_t need) const {
    return Fail(what + AtByte(position_) + " takes " + Grouped(need) + " bytes, but only " +
                Grouped(left()) + " are left in the file (" + Grouped(file_.size()) +
                " bytes): truncated?");
  }

  Result<Bytes> Take(uint64_t size, const std::string& what) {
    if (size > left()) return PastTheEnd(what, size);
    const Bytes bytes = file_.subspan(position_, size);
    position_ += size;
    return bytes;
  }

  template <class T>
  Result<T> Read(const std::string& what) {
    ASSIGN_OR_RETURN(const Bytes bytes, Take(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  Result<Bytes> ReadString(const std::string& what) {
    ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>("the length of " + what));
    return Take(length, what);
  }

  Result<std::string_view> ReadName(const std::string& what, size_t bytes_max) {
    const uint64_t start = position_;
    ASSIGN_OR_RETURN(const Bytes bytes, ReadString(what));
    if (bytes.empty() || bytes.size() > bytes_max) {
      return Fail(what + AtByte(start) + " is " + Grouped(bytes.size()) +
                  " bytes long, expected 1 to " + Grouped(bytes_max));
    }
    return AsText(bytes);
  }

  Status CheckCount(uint64_t count, size_t bytes_min, const char* what) const {
    if (count <= left() / bytes_min) return Status();
    return Fail("the header at byte 0 announces " + Grouped(count) + " " + what +
                ", more than the " + Grouped(left()) + " bytes from byte " + Grouped(position_) +
                " to the end of the file can hold: truncated?");
  }

  struct Counts {
    uint64_t tensors;
    uint64_t keys;
  };
  Result<Counts> ParseHeader() {
    ASSIGN_OR_RETURN(const Bytes magic, Take(4, "the magic 'GGUF'"));
    if (AsText(magic) != "GGUF") {
      return Fail("is not a GGUF file: starts with " + Quoted(AsText(magic)) + ", expected 'GGUF'");
    }
    ASSIGN_OR_RETURN(contents_.version, Read<uint32_t>("the format version"));
    if (contents_.version != 2 && contents_.version != 3) {
      const uint32_t swapped = __builtin_bswap32(contents_.version);
      const bool big_endian = swapped >= 1 && swapped <= 3;
      return Status(
          Code::kUnimplemented,
          name_ + (big_endian ? ": is a big-endian GGUF file, expected a little-endian one"
                              : ": the GGUF version at byte 4 is " + Grouped(contents_.version) +
                                    ", expected 2 or 3"));
    }
    Counts counts;
    ASSIGN_OR_RETURN(counts.tensors, Read<uint64_t>("the number of tensors"));
    ASSIGN_OR_RETURN(counts.keys, Read<uint64_t>("the number of keys"));
    RETURN_IF_ERROR(CheckCount(counts.keys, kKeyBytesMin, "keys"));
    RETURN_IF_ERROR(CheckCount(counts.tensors, kTensorBytesMin, "tensors"));
    return counts;
  }

  Result<GgufType> ReadType(const std::string& what) {
    const uint64_t start = position_;
    ASSIGN_OR_RETURN(const uint32_t id, Read<uint32_t>("the type of " + what));
    if (id > static_cast<uint32_t>(GgufType::kFloat64)) {
      return Fail("the type of " + what + AtByte(start) + " is " + Grouped(id) +
                  ", expected 0 to 12");
    }
    return static_cast<GgufType>(id);
  }

  Status ParseKey(uint64_t index) {
    const uint64_t start = position_;
    ASSIGN_OR_RETURN(const std::string_view key,
                     ReadName("the name of key " + Grouped(index), kKeyBytesMax));
    const std::string what = "key " + Quoted(key);
    GgufValue value = {};
    ASSIGN_OR_RETURN(value.type, ReadType(what));
    if (value.type == GgufType::kArray) {
      RETURN_IF_ERROR(ParseArray(what, value));
    } else if (value.type == GgufType::kString) {
      ASSIGN_OR_RETURN(value.bytes, ReadString("the value of " + what));
    } else {
      ASSIGN_OR_RETURN(value.bytes, Take(GgufTypeBytes(value.type), "the value of " + what));
    }
    if (!contents_.values.emplace(key, value).second) {
      return Fail(what + AtByte(start) + " is there twice");
    }
    return Status();
  }

  Status ParseArray(const std::string& what, GgufValue& value) {
    const uint64_t start = position_;
    value.is_array = true;
    ASSIGN_OR_RETURN(value.type, ReadType("the elements of " + what));
    if (value.type == GgufType::kArray) {
      return Fail(what + AtByte(start) + " is an array of arrays, expected one of plain values");
    }
    ASSIGN_OR_RETURN(value.count, Read<uint64_t>("the number of elements of " + what));
    const bool strings = value.type == GgufType::kString;
    const size_t element_bytes_min = strings ? sizeof(uint64_t) : GgufTypeBytes(value.type);
    if (value.count > left() / element_bytes_min) {
      return Fail(what + AtByte(start) + " announces " + Grouped(value.count) +
                  " elements, more than the " + Grouped(left()) +
                  " bytes that are left in the file can hold: truncated?");
    }
    if (!strings) {
      ASSIGN_OR_RETURN(value.bytes, Take(value.count * element_bytes_min, what));
      return Status();
    }
    const uint64_t first = position_;
    for (uint64_t i = 0; i < value.count; ++i) {
      uint64_t length = 0;  // read without a message, for the sake of long vocabularies
      if (left() < sizeof(length)) return PastTheEnd("an element of " + what, sizeof(length));
      std::memcpy(&length, file_.data() + position_, sizeof(length));
      position_ += sizeof(length);
      if (left() < length) {
        return PastTheEnd("element " + Grouped(i) + " of " + what, length);
      }
      position_ += length;
    }
    value.bytes = file_.subspan(first, position_ - first);
    return Status();
  }

  Status ReadAlignment() {
    const auto found = contents_.values.find("general.alignment");
    if (found == contents_.values.end()) return Status();
    const GgufValue& value = found->second;
    if (value.type != GgufType::kUint32 || value.is_array) {
      return Fail("key 'general.alignment' is " +
                  std::string(value.is_array ? "an array of " : "") + GgufTypeName(value.type) +
                  ", expected u32");
    }
    std::memcpy(&alignment_, value.bytes.data(), sizeof(alignment_));
    if (!std::has_single_bit(alignment_) || alignment_ < kAlignmentMin ||
        alignment_ > kAlignmentMax) {
      return Fail("key 'general.alignment' is " + Grouped(alignment_) +
                  ", expected a power of two from " + Grouped(kAlignmentMin) + " to " +
                  Grouped(kAlignmentMax));
    }
    return Status();
  }

  Status ParseTensor(uint64_t index) {
    const uint64_t start = position_;
    GgufTensor tensor;
    ASSIGN_OR_RETURN(tensor.name,
                     ReadName("the name of tensor " + Grouped(index), kTensorNameBytesMax));
    const std::string what = "tensor " + Quoted(tensor.name);
    ASSIGN_OR_RETURN(tensor.dim_count, Read<uint32_t>("the number of dimensions of " + what));
    if (tensor.dim_count < 1 || tensor.dim_count > kGgufDimsMax) {
      return Fail(what + AtByte(start) + " has " + Grouped(tensor.dim_count) +
                  " dimensions, expected 1 to " + Grouped(kGgufDimsMax));
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor.dim_count; ++d) {
      ASSIGN_OR_RETURN(tensor.dims[d], Read<uint64_t>("the shape of " + what));
      if (tensor.dims[d] == 0) return Fail(what + AtByte(start) + " has a dimension of 0");
      if (__builtin_mul_overflow(elements, tensor.dims[d], &elements)) {
        return Fail(what + AtByte(start) + " has more than 2^64 elements");
      }
    }
    ASSIGN_OR_RETURN(tensor.type_id, Read<uint32_t>("the type of " + what));
    tensor.type = KnownTensorType(tensor.type_id);
    // Counts from the end of the padding until Place makes it one in the file.
    ASSIGN_OR_RETURN(tensor.file_offset, Read<uint64_t>("the offset of " + what));
    if (!contents_.tensor_index.emplace(tensor.name, index).second) {
      return Fail(what + AtByte(start) + " is there twice");
    }
    contents_.tensors.push_back(tensor);
    return Status();
  }

  // Turns the offset into one in the file and finds the bytes.
  Status Place(GgufTensor& tensor, uint64_t data_start) const {
    const std::string what = "tensor " + Quoted(tensor.name);
    if (tensor.file_offset % alignment_ != 0) {
      return Fail(what + " has offset " + Grouped(tensor.file_offset) +
                  ", expected a multiple of the alignment " + Grouped(alignment_));
    }
    uint64_t size = 0;
    if (tensor.type) {
      const TensorTypeTraits traits = TraitsOf(*tensor.type);
      if (tensor.dims[0] % traits.group_elements != 0) {
        return Fail(what + " has rows of " + Grouped(tensor.dims[0]) + " elements, expected a " +
                    "multiple of " + Grouped(traits.group_elements) + " for type " + traits.name);
      }
      const uint64_t groups = tensor.element_count() / traits.group_elements;
      if (__builtin_mul_overflow(groups, uint64_t{traits.group_bytes}, &size)) {
        return Fail(what + " has more than 2^64 bytes");
      }
    }
    uint64_t end = 0;
    if (__builtin_add_overflow(tensor.file_offset, data_start, &tensor.file_offset) ||
        __builtin_add_overflow(tensor.file_offset, size, &end)) {
      return Fail(what + " ends past byte 2^64, and the file has " + Grouped(file_.size()));
    }
    if (end > file_.size()) {
      return Fail(what + " ends at byte " + Grouped(end) + ", past the end of the file (" +
                  Grouped(file_.size()) + " bytes): truncated?");
    }
    tensor.bytes = file_.subspan(tensor.file_offset, size);
    return Status();
  }

  Status CheckOverlaps() const {
    std::vector<const GgufTensor*> ordered;
    ordered.reserve(contents_.tensors.size());
    for (const GgufTensor& tensor : contents_.tensors) ordered.push_back(&tensor);
    std::ranges::stable_sort(ordered, {}, &GgufTensor::file_offset);
    for (size_t i = 1; i < ordered.size(); ++i) {
      const GgufTensor& before = *ordered[i - 1];
      const uint64_t end = before.file_offset + before.bytes.size();
      if (ordered[i]->file_offset < end) {
        return Fail("tensor " + Quoted(ordered[i]->name) + " starts at byte " +
                    Grouped(ordered[i]->file_offset) + ", inside tensor " + Quoted(before.name) +
                    " (bytes " + Grouped(before.file_offset) + " to " + Grouped(end) + ")");
      }
    }
    return Status();
  }

  const Bytes file_;
  const std::string& name_;
  uint64_t position_ = 0;  // at most file_.size()
  uint32_t alignment_ = kDefaultAlignment;
  GgufContents contents_;
};

}  // namespace

const char* GgufTypeName(GgufType type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

size_t GgufTypeBytes(GgufType type) {
  static constexpr size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<uint32_t>(type)];
}

Result<GgufContents> ParseGguf(std::span<const std::byte> file, const std::string& name) {
  return Parser(file, name).Parse();
}

}  // namespace cairn
