#include "tests/fakes/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "base/rng.h"

namespace cairn {
namespace {

template <class T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class T>
std::string Encode(T value) {
  std::string out;
  Append(out, value);
  return out;
}

void AppendString(std::string& out, std::string_view text) {
  Append(out, uint64_t{text.size()});
  out += text;
}

template <class T>
std::string EncodeArray(GgufType type, std::span<const T> values) {
  std::string out = Encode(static_cast<uint32_t>(type));
  Append(out, uint64_t{values.size()});
  for (const T& value : values) Append(out, value);
  return out;
}

// Rounded to the nearest half of a magnitude that is normal in binary16 (or 0): test weights are.
uint16_t ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) return static_cast<uint16_t>(sign);  // no subnormals
  CHECK(magnitude < 65504);
  const uint32_t fraction_bits = std::bit_cast<uint32_t>(magnitude) - (112u << 23);
  const uint32_t rounded = fraction_bits + 0xfff + (fraction_bits >> 13 & 1);  // ties to even
  return static_cast<uint16_t>(sign | rounded >> 13);
}

float FromHalf(uint16_t half) {
  const uint32_t magnitude = half & 0x7fff;
  const float value = magnitude == 0 ? 0 : std::bit_cast<float>((magnitude << 13) + (112u << 23));
  return half & 0x8000 ? -value : value;
}

int Clamp(float value, int low, int high) {
  return std::clamp(static_cast<int>(std::lround(value)), low, high);
}

void AppendNibbles(std::string& out, std::span<const float> group, float scale, float offset) {
  const auto level = [&](size_t i) {
    return scale == 0 ? 0 : Clamp((group[i] - offset) / scale, 0, 15);
  };
  for (size_t i = 0; i < kQuantGroup / 2; ++i) {
    Append(out, static_cast<uint8_t>(level(i) | level(i + kQuantGroup / 2) << 4));
  }
}

void AppendGroup(std::string& out, TensorType type, std::span<const float> group) {
  const auto [low, high] = std::ranges::minmax(group);
  const float largest = std::max(-low, high);
  switch (type) {
    case TensorType::kF32:
      return Append(out, group[0]);
    case TensorType::kF16:
      return Append(out, ToHalf(group[0]));
    case TensorType::kBF16: {
      const auto bits = std::bit_cast<uint32_t>(group[0]);
      return Append(out, static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
    }
    case TensorType::kQ8_0: {
      const uint16_t half = ToHalf(largest / 127);
      const float scale = FromHalf(half);
      Append(out, half);
      for (const float value : group) {
        Append(out, static_cast<int8_t>(scale == 0 ? 0 : Clamp(value / scale, -127, 127)));
      }
      return;
    }
    case TensorType::kQ4_0: {
      const uint16_t half = ToHalf(largest / 7);
      Append(out, half);
      return AppendNibbles(out, group, FromHalf(half), -8 * FromHalf(half));
    }
    case TensorType::kQ4_1: {
      const uint16_t scale = ToHalf((high - low) / 15);
      const uint16_t offset = ToHalf(low);
      Append(out, scale);
      Append(out, offset);
      return AppendNibbles(out, group, FromHalf(scale), FromHalf(offset));
    }
  }
}

}  // namespace

void GgufWriter::SetRaw(std::string_view key, uint32_t type_id, std::string_view encoding) {
  const auto found = std::ranges::find(keys_, key, &Key::name);
  Key& entry = found != keys_.end() ? *found : keys_.emplace_back();
  entry = {std::string(key), type_id, std::string(encoding)};
}
void GgufWriter::SetU32(std::string_view key, uint32_t value) {
  SetRaw(key, static_cast<uint32_t>(GgufType::kUint32), Encode(value));
}
void GgufWriter::SetF32(std::string_view key, float value) {
  SetRaw(key, static_cast<uint32_t>(GgufType::kFloat32), Encode(value));
}
void GgufWriter::SetBool(std::string_view key, bool value) {
  SetRaw(key, static_cast<uint32_t>(GgufType::kBool), Encode(static_cast<uint8_t>(value)));
}
void GgufWriter::SetString(std::string_view key, std::string_view value) {
  std::string encoding;
  AppendString(encoding, value);
  SetRaw(key, static_cast<uint32_t>(GgufType::kString), encoding);
}
void GgufWriter::SetStrings(std::string_view key, const std::vector<std::string>& values) {
  std::string encoding = Encode(static_cast<uint32_t>(GgufType::kString));
  Append(encoding, uint64_t{values.size()});
  for (const std::string& value : values) AppendString(encoding, value);
  SetRaw(key, static_cast<uint32_t>(GgufType::kArray), encoding);
}
void GgufWriter::SetI32s(std::string_view key, std::span<const int32_t> values) {
  SetRaw(key, static_cast<uint32_t>(GgufType::kArray), EncodeArray(GgufType::kInt32, values));
}
void GgufWriter::SetF32s(std::string_view key, std::span<const float> values) {
  SetRaw(key, static_cast<uint32_t>(GgufType::kArray), EncodeArray(GgufType::kFloat32, values));
}

void GgufWriter::Remove(std::string_view key) {
  CHECK(std::erase_if(keys_, [&](const Key& entry) { return entry.name == key; }) == 1);
}

void GgufWriter::RepeatKey(std::string_view key) {
  const auto found = std::ranges::find(keys_, key, &Key::name);
  CHECK(found != keys_.end());
  keys_.push_back(Key(*found));
}

void GgufWriter::AddTensor(std::string_view name, uint32_t type_id, std::vector<uint64_t> dims,
                           std::string_view data, std::optional<uint64_t> offset) {
  tensors_.push_back({std::string(name), type_id, std::move(dims), std::string(data), offset});
}

void GgufWriter::RemoveTensor(std::string_view name) {
  CHECK(std::erase_if(tensors_, [&](const Tensor& t) { return t.name == name; }) == 1);
}

GgufWriter::Tensor& GgufWriter::tensor(std::string_view name) {
  const auto found = std::ranges::find(tensors_, name, &Tensor::name);
  CHECK(found != tensors_.end());
  return *found;
}

void GgufWriter::Write(std::ostream& out) const {
  const auto padded = [this](uint64_t size) {
    return (size + alignment - 1) / alignment * alignment;
  };
  std::string head = "GGUF";
  Append(head, version);
  Append(head, stated_tensor_count.value_or(tensors_.size()));
  Append(head, stated_key_count.value_or(keys_.size()));
  for (const Key& key : keys_) {
    AppendString(head, key.name);
    Append(head, key.type_id);
    head += key.encoding;
  }
  uint64_t end = 0;  // of the data so far
  for (const Tensor& tensor : tensors_) {
    AppendString(head, tensor.name);
    Append(head, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) Append(head, dim);
    Append(head, tensor.type_id);
    Append(head, tensor.offset.value_or(padded(end)));
    end = padded(end) + tensor.data.size();
  }
  head.resize(padded(head.size()));
  out << head;
  end = 0;
  for (const Tensor& tensor : tensors_) {
    out << std::string(padded(end) - end, '\0') << tensor.data;
    end = padded(end) + tensor.data.size();
  }
}

std::string GgufWriter::Bytes() const {
  std::ostringstream out;
  Write(out);
  return std::move(out).str();
}

uint32_t GgufTypeId(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return 0;
    case TensorType::kF16:
      return 1;
    case TensorType::kQ4_0:
      return 2;
    case TensorType::kQ4_1:
      return 3;
    case TensorType::kQ8_0:
      return 8;
    case TensorType::kBF16:
      return 30;
  }
  CHECK(false);
}

std::string EncodeTensor(TensorType type, std::span<const float> values) {
  const TensorTypeTraits traits = TraitsOf(type);
  CHECK(values.size() % traits.group_elements == 0);
  std::string out;
  for (size_t i = 0; i < values.size(); i += traits.group_elements) {
    AppendGroup(out, type, values.subspan(i, traits.group_elements));
  }
  return out;
}

std::string RandomCodes(TensorType type, size_t count, float scale, Rng& rng) {
  const TensorTypeTraits traits = TraitsOf(type);
  CHECK(traits.group_elements == kQuantGroup && count % kQuantGroup == 0);
  std::string out(count / kQuantGroup * traits.group_bytes, '\0');
  for (size_t at = 0; at + sizeof(uint64_t) <= out.size(); at += sizeof(uint64_t)) {
    const uint64_t word = rng.Next();
    std::memcpy(&out[at], &word, sizeof(word));
  }
  // Codes are 0 .. 15, or -128 .. 127; their offset is what makes them even about zero.
  const uint16_t half = ToHalf(type == TensorType::kQ8_0 ? scale / 16 : scale);
  const uint16_t offset = ToHalf(-7.5f * scale);
  for (size_t at = 0; at < out.size(); at += traits.group_bytes) {
    std::memcpy(&out[at], &half, sizeof(half));
    if (type == TensorType::kQ4_1) std::memcpy(&out[at + sizeof(half)], &offset, sizeof(offset));
  }
  return out;
}

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  CHECK(file.good());
}

}  // namespace cairn
