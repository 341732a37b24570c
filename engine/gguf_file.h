// A GGUF file: metadata by key, tensors by name. The format and what is checked: gguf_parser.h.
// Threads: immutable, any thread. Views live as long as the GgufFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/gguf_parser.h"
#include "engine/mapped_file.h"

namespace cairn {

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
  uint32_t version() const { return contents_.version; }
  size_t size_bytes() const { return bytes_.size(); }
  // None for a file that was parsed from memory.
  std::optional<FileIdentity> identity() const;

  // Metadata. Integers convert to the type that is asked for when the value fits. kNotFound when
  // the key is absent, kInvalidArgument when its value is of another kind. With `absent`, that
  // value stands in for an absent key.
  bool Has(std::string_view key) const { return contents_.values.contains(key); }
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
  std::span<const GgufTensor> tensors() const { return contents_.tensors; }
  // Null when there is none of that name.
  const GgufTensor* FindTensor(std::string_view name) const;

  // Lets go of the resident pages of `range`, a part of some tensor's bytes, for example once the
  // tensor has been repacked. Nothing is lost: touching them again reads them again.
  void ReleasePages(std::span<const std::byte> range) const;

 private:
  GgufFile(std::optional<MappedFile> mapping, std::span<const std::byte> bytes, std::string name,
           GgufContents contents)
      : mapping_(std::move(mapping)),
        bytes_(bytes),
        name_(std::move(name)),
        contents_(std::move(contents)) {}
  Result<const GgufValue*> Find(std::string_view key) const;
  Status WrongKind(std::string_view key, std::string_view expected) const;
  template <class T>
  Result<std::vector<T>> GetArray(std::string_view key, std::string_view expected) const;

  const std::optional<MappedFile> mapping_;
  const std::span<const std::byte> bytes_;
  const std::string name_;
  const GgufContents contents_;
};

}  // namespace cairn
