#include "engine/gguf_file.h"

#include <cstring>
#include <limits>

#include "engine/message_text.h"

namespace cairn {
namespace {

template <class T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// The value as a T if the file has a number that a T can hold: integers for an integer T, floating
// point for a floating T.
template <class T>
std::optional<T> LoadNumber(GgufType type, const std::byte* bytes) {
  const auto fit = [](auto value) -> std::optional<T> {
    if (std::in_range<T>(value)) return static_cast<T>(value);
    return std::nullopt;
  };
  if constexpr (std::is_floating_point_v<T>) {
    if (type == GgufType::kFloat32) return static_cast<T>(Load<float>(bytes));
    if (type == GgufType::kFloat64) return static_cast<T>(Load<double>(bytes));
    return std::nullopt;
  } else {
    switch (type) {
      case GgufType::kUint8:
        return fit(Load<uint8_t>(bytes));
      case GgufType::kInt8:
        return fit(Load<int8_t>(bytes));
      case GgufType::kUint16:
        return fit(Load<uint16_t>(bytes));
      case GgufType::kInt16:
        return fit(Load<int16_t>(bytes));
      case GgufType::kUint32:
        return fit(Load<uint32_t>(bytes));
      case GgufType::kInt32:
        return fit(Load<int32_t>(bytes));
      case GgufType::kUint64:
        return fit(Load<uint64_t>(bytes));
      case GgufType::kInt64:
        return fit(Load<int64_t>(bytes));
      default:
        return std::nullopt;
    }
  }
}

// What a message calls a value: "u32 7", "an array of 3 string", "string".
std::string Describe(const GgufValue& value) {
  if (value.is_array) {
    return "an array of " + Grouped(value.count) + " " + GgufTypeName(value.type);
  }
  std::string type = GgufTypeName(value.type);
  if (const auto number = LoadNumber<uint64_t>(value.type, value.bytes.data())) {
    return type + " " + Grouped(*number);
  }
  if (const auto number = LoadNumber<int64_t>(value.type, value.bytes.data())) {
    return type + " " + std::to_string(*number);
  }
  return type;
}

}  // namespace

std::string TensorTypeText(const GgufTensor& tensor) {
  if (tensor.type) return TraitsOf(*tensor.type).name;
  return "type " + std::to_string(tensor.type_id);
}

std::string ShapeText(const GgufTensor& tensor) {
  std::string text = "[";
  for (uint32_t d = 0; d < tensor.dim_count; ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(tensor.dims[d]);
  }
  return text + "]";
}

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(mapping.bytes(), path));
  const std::span<const std::byte> bytes = mapping.bytes();
  return std::unique_ptr<GgufFile>(
      new GgufFile(std::move(mapping), bytes, path, std::move(contents)));
}

Result<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes,
                                                  std::string name) {
  ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(bytes, name));
  return std::unique_ptr<GgufFile>(
      new GgufFile(std::nullopt, bytes, std::move(name), std::move(contents)));
}

std::optional<FileIdentity> GgufFile::identity() const {
  if (!mapping_) return std::nullopt;
  return mapping_->identity();
}

Result<const GgufValue*> GgufFile::Find(std::string_view key) const {
  const auto found = contents_.values.find(key);
  if (found == contents_.values.end()) {
    return NotFound(name_ + ": key " + Quoted(key) + " is missing");
  }
  return &found->second;
}

Status GgufFile::WrongKind(std::string_view key, std::string_view expected) const {
  const GgufValue& value = contents_.values.at(key);
  const uint64_t offset = value.bytes.data() - bytes_.data();
  return InvalidArgument(name_ + ": key " + Quoted(key) + " at byte " + Grouped(offset) + " is " +
                         Describe(value) + ", expected " + std::string(expected));
}

Result<uint32_t> GgufFile::GetU32(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (!value->is_array) {
    if (const auto number = LoadNumber<uint32_t>(value->type, value->bytes.data())) return *number;
  }
  return WrongKind(key, "an integer from 0 to 4,294,967,295");
}

Result<uint32_t> GgufFile::GetU32(std::string_view key, uint32_t absent) const {
  if (!Has(key)) return absent;
  return GetU32(key);
}

Result<float> GgufFile::GetF32(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (!value->is_array) {
    if (const auto number = LoadNumber<float>(value->type, value->bytes.data())) return *number;
  }
  return WrongKind(key, "a floating-point number");
}

Result<float> GgufFile::GetF32(std::string_view key, float absent) const {
  if (!Has(key)) return absent;
  return GetF32(key);
}

Result<bool> GgufFile::GetBool(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type == GgufType::kBool && !value->is_array) {
    const auto byte = Load<uint8_t>(value->bytes.data());
    if (byte <= 1) return byte == 1;
  }
  return WrongKind(key, "a bool (a byte of 0 or 1)");
}

Result<bool> GgufFile::GetBool(std::string_view key, bool absent) const {
  if (!Has(key)) return absent;
  return GetBool(key);
}

Result<std::string_view> GgufFile::GetString(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kString || value->is_array) return WrongKind(key, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

Result<std::string_view> GgufFile::GetString(std::string_view key, std::string_view absent) const {
  if (!Has(key)) return absent;
  return GetString(key);
}

Result<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kString || !value->is_array) {
    return WrongKind(key, "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  const std::byte* at = value->bytes.data();  // lengths were checked when the file was parsed
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = Load<uint64_t>(at);
    at += sizeof(length);
    strings.emplace_back(reinterpret_cast<const char*>(at), length);
    at += length;
  }
  return strings;
}

template <class T>
Result<std::vector<T>> GgufFile::GetArray(std::string_view key, std::string_view expected) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (!value->is_array) return WrongKind(key, expected);
  const size_t stride = GgufTypeBytes(value->type);
  std::vector<T> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = LoadNumber<T>(value->type, value->bytes.data() + i * stride);
    if (!number) return WrongKind(key, expected);
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::vector<int32_t>> GgufFile::GetI32s(std::string_view key) const {
  return GetArray<int32_t>(key, "an array of integers of 32 bits");
}

Result<std::vector<float>> GgufFile::GetF32s(std::string_view key) const {
  return GetArray<float>(key, "an array of floating-point numbers");
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = contents_.tensor_index.find(name);
  return found == contents_.tensor_index.end() ? nullptr : &contents_.tensors[found->second];
}

void GgufFile::ReleasePages(std::span<const std::byte> range) const {
  if (mapping_) mapping_->ReleasePages(range);
}

}  // namespace cairn
