// The GGUF reader against files that are right, and against every way we know to be wrong.
#include "engine/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>

#include "engine/message_text.h"
#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/ordinary_user.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A parsed file together with its bytes, which lie in a block of exactly their size so that a read
// past the end is seen by the sanitizers.
struct Parsed {
  explicit Parsed(std::string_view content)
      : bytes(new std::byte[content.size()]),
        file((std::memcpy(bytes.get(), content.data(), content.size()),
              GgufFile::Parse({bytes.get(), content.size()}, "some.gguf"))) {}
  std::unique_ptr<std::byte[]> bytes;
  Result<std::unique_ptr<GgufFile>> file;
};

std::string Encoded(uint64_t value, size_t size) {
  return {reinterpret_cast<const char*>(&value), size};
}

constexpr uint32_t kU32 = 4;
constexpr uint32_t kArray = 9;
constexpr uint32_t kF32Tensor = 0;
constexpr uint32_t kQ4_KTensor = 12;

TEST(GgufFile, ReadsEveryKindOfValue) {
  GgufWriter writer;
  writer.SetU32("count", 7);
  writer.SetRaw("wide", 10, Encoded(uint64_t{1} << 32, 8));
  writer.SetRaw("narrow", 0, Encoded(255, 1));
  writer.SetRaw("negative", 11, Encoded(static_cast<uint64_t>(-5), 8));
  writer.SetF32("base", 1e5f);
  writer.SetBool("flag", true);
  writer.SetRaw("maybe", 7, "\x02");
  writer.SetString("name", "caf\xc3\xa9");
  writer.SetString("empty", "");
  writer.SetStrings("tokens", {"a", "", "ccc"});
  writer.SetI32s("types", std::vector<int32_t>{1, -2, 3});
  writer.SetF32s("scores", std::vector<float>{0.5f, -1});
  const std::string bytes = writer.Bytes();
  const Parsed parsed(bytes);
  ASSERT_TRUE(parsed.file.ok()) << parsed.file.status().ToString();
  const GgufFile& file = **parsed.file;
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.size_bytes(), bytes.size());

  EXPECT_EQ(*file.GetU32("count"), 7u);
  EXPECT_EQ(*file.GetU32("narrow"), 255u);
  EXPECT_EQ(*file.GetU32("none", 3), 3u);
  EXPECT_EQ(*file.GetF32("base"), 1e5f);
  EXPECT_EQ(*file.GetF32("none", 2.5f), 2.5f);
  EXPECT_TRUE(*file.GetBool("flag"));
  EXPECT_FALSE(*file.GetBool("none", false));
  EXPECT_EQ(*file.GetString("name"), "caf\xc3\xa9");
  EXPECT_EQ(*file.GetString("empty"), "");
  EXPECT_EQ(*file.GetString("none", "fallback"), "fallback");
  EXPECT_THAT(*file.GetStrings("tokens"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*file.GetI32s("types"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*file.GetF32s("scores"), ElementsAre(0.5f, -1.0f));

  EXPECT_EQ(file.GetU32("none").status().ToString(), "NOT_FOUND: some.gguf: key 'none' is missing");
  EXPECT_THAT(file.GetU32("wide").status().ToString(),
              HasSubstr("is u64 4,294,967,296, expected an integer from 0 to 4,294,967,295"));
  EXPECT_THAT(file.GetU32("negative", 1).status().ToString(), HasSubstr("is i64 -5, expected"));
  EXPECT_THAT(file.GetU32("tokens").status().message(), HasSubstr("is an array of 3 string"));
  EXPECT_THAT(file.GetF32("count").status().message(), HasSubstr("is u32 7, expected a floating"));
  EXPECT_THAT(file.GetBool("maybe").status().message(), HasSubstr("expected a bool"));
  EXPECT_THAT(file.GetString("count").status().message(), HasSubstr("expected a string"));
  EXPECT_THAT(file.GetStrings("name").status().message(),
              HasSubstr("expected an array of strings"));
  EXPECT_THAT(file.GetI32s("scores").status().message(), HasSubstr("is an array of 2 f32"));
  EXPECT_THAT(file.GetF32s("tokens").status().message(), HasSubstr("an array of 3 string"));
}

TEST(GgufFile, FindsTensors) {
  for (const uint32_t version : {2, 3}) {
    GgufWriter writer;
    writer.version = version;
    writer.alignment = 64;
    writer.SetU32("general.alignment", 64);
    writer.AddTensor("a", kF32Tensor, {3}, std::string(12, 'a'));
    writer.AddTensor("b", GgufTypeId(TensorType::kQ4_1), {64, 2, 1, 3}, std::string(240, 'b'));
    writer.AddTensor("strange", kQ4_KTensor, {256}, std::string(144, 's'));
    const Parsed parsed(writer.Bytes());
    ASSERT_TRUE(parsed.file.ok()) << parsed.file.status().ToString();
    const GgufFile& file = **parsed.file;
    EXPECT_EQ(file.FindTensor("c"), nullptr);
    ASSERT_EQ(file.tensors().size(), 3u);

    const GgufTensor& b = *file.FindTensor("b");
    EXPECT_EQ(b.type, TensorType::kQ4_1);
    EXPECT_EQ(TensorTypeText(b), "Q4_1");
    EXPECT_EQ(ShapeText(b), "[64, 2, 1, 3]");
    EXPECT_EQ(b.element_count(), 384u);
    EXPECT_EQ(b.file_offset % 64, 0u);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.bytes.data()), b.bytes.size()),
              std::string(240, 'b'));

    // A type that we do not know is told only to those who need the tensor.
    const GgufTensor& strange = *file.FindTensor("strange");
    EXPECT_FALSE(strange.type.has_value());
    EXPECT_TRUE(strange.bytes.empty());
    EXPECT_EQ(TensorTypeText(strange), "type 12");
  }
}

struct BrokenFile {
  const char* name;
  Code code;
  const char* message;  // a part of it
  std::function<void(GgufWriter&)> change;
};

void PrintTo(const BrokenFile& broken, std::ostream* out) { *out << broken.name; }

class Broken : public testing::TestWithParam<BrokenFile> {};

TEST_P(Broken, IsRefusedInOneLine) {
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  writer.AddTensor("first", kF32Tensor, {8}, std::string(32, 'x'));
  writer.AddTensor("second", kF32Tensor, {8, 2}, std::string(64, 'y'));
  ASSERT_TRUE(Parsed(writer.Bytes()).file.ok());
  GetParam().change(writer);
  const Parsed parsed(writer.Bytes());
  ASSERT_FALSE(parsed.file.ok());
  const Status& status = parsed.file.status();
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_THAT(status.message(), AllOf(StartsWith("some.gguf: "), HasSubstr(GetParam().message),
                                      Not(HasSubstr("\n"))));
}

std::string RawArray(uint32_t type, uint64_t count, std::string_view elements) {
  return Encoded(type, 4) + Encoded(count, 8) + std::string(elements);
}

constexpr Code kBad = Code::kInvalidArgument;
const BrokenFile kBrokenFiles[] = {
    {"BigEndian", Code::kUnimplemented, "big-endian", [](auto& w) { w.version = 0x03000000; }},
    {"Version1", Code::kUnimplemented, "version at byte 4 is 1, expected 2 or 3",
     [](auto& w) { w.version = 1; }},
    {"Version4", Code::kUnimplemented, "version at byte 4 is 4, expected 2 or 3",
     [](auto& w) { w.version = 4; }},
    {"TensorCountHuge", kBad, "announces 18,446,744,073,709,551,615 tensors",
     [](auto& w) { w.stated_tensor_count = ~uint64_t{0}; }},
    {"KeyCountHuge", kBad, "announces 1,152,921,504,606,846,976 keys",
     [](auto& w) { w.stated_key_count = uint64_t{1} << 60; }},
    {"TensorCountOneMore", kBad, "tensor 2", [](auto& w) { w.stated_tensor_count = 3; }},
    {"KeyTwice", kBad, "key 'general.architecture' at byte 69 is there twice",
     [](auto& w) { w.RepeatKey("general.architecture"); }},
    {"KeyWithoutName", kBad, "the name of key 1 at byte 69 is 0 bytes long, expected 1 to 65,535",
     [](auto& w) { w.SetU32("", 1); }},
    {"KeyNameTooLong", kBad, "is 65,536 bytes long, expected 1 to 65,535",
     [](auto& w) { w.SetU32(std::string(65536, 'k'), 1); }},
    {"KeyTypeUnknown", kBad, "the type of key 'k' at byte 78 is 13, expected 0 to 12",
     [](auto& w) { w.SetRaw("k", 13, "1234"); }},
    {"StringTooLong", kBad, "the value of key 'k' at byte",
     [](auto& w) { w.SetRaw("k", 8, Encoded(uint64_t{1} << 63, 8)); }},
    {"ArrayOfArrays", kBad, "key 'k' at byte 82 is an array of arrays",
     [](auto& w) { w.SetRaw("k", kArray, RawArray(kArray, 1, RawArray(kU32, 0, ""))); }},
    {"ArrayTypeUnknown", kBad, "the type of the elements of key 'k' at byte 82 is 99",
     [](auto& w) { w.SetRaw("k", kArray, RawArray(99, 0, "")); }},
    {"ArrayHuge", kBad, "key 'k' at byte 82 announces 4,611,686,018,427,387,904 elements",
     [](auto& w) { w.SetRaw("k", kArray, RawArray(kU32, uint64_t{1} << 62, "")); }},
    {"ArrayOfStringsHuge", kBad, "announces 1,000 elements",
     [](auto& w) { w.SetRaw("k", kArray, RawArray(8, 1000, "")); }},
    {"StringInArrayTooLong", kBad, "element 1 of key 'k' at byte",
     [](auto& w) {
       w.SetRaw("k", kArray, RawArray(8, 2, Encoded(1, 8) + "a" + Encoded(~uint64_t{0}, 8)));
     }},
    {"AlignmentZero", kBad, "'general.alignment' is 0, expected a power of two from 8 to 65,536",
     [](auto& w) { w.SetU32("general.alignment", 0); }},
    {"AlignmentOdd", kBad, "'general.alignment' is 48",
     [](auto& w) { w.SetU32("general.alignment", 48); }},
    {"AlignmentHuge", kBad, "'general.alignment' is 2,147,483,648",
     [](auto& w) { w.SetU32("general.alignment", 1u << 31); }},
    {"AlignmentOfAnotherType", kBad, "'general.alignment' is string, expected u32",
     [](auto& w) { w.SetString("general.alignment", "32"); }},
    {"TensorWithoutName", kBad, "the name of tensor 2",
     [](auto& w) { w.AddTensor("", kF32Tensor, {1}, "1234"); }},
    {"TensorNameTooLong", kBad, "is 65 bytes long, expected 1 to 64",
     [](auto& w) { w.AddTensor(std::string(65, 't'), kF32Tensor, {1}, "1234"); }},
    {"TensorTwice", kBad, "tensor 'first' at byte",
     [](auto& w) { w.AddTensor("first", kF32Tensor, {1}, "1234"); }},
    {"NoDimensions", kBad, "has 0 dimensions, expected 1 to 4",
     [](auto& w) { w.tensor("first").dims = {}; }},
    {"FiveDimensions", kBad, "has 5 dimensions, expected 1 to 4",
     [](auto& w) {
       w.tensor("first").dims = {8, 1, 1, 1, 1};
     }},
    {"DimensionZero", kBad, "tensor 'first' at byte 69 has a dimension of 0",
     [](auto& w) {
       w.tensor("first").dims = {8, 0};
     }},
    {"ElementsOverflow", kBad, "more than 2^64 elements",
     [](auto& w) {
       w.tensor("first").dims = {uint64_t{1} << 32, uint64_t{1} << 32};
     }},
    {"BytesOverflow", kBad, "more than 2^64 bytes",
     [](auto& w) { w.tensor("first").dims = {uint64_t{1} << 62}; }},
    {"TensorPastTheEnd", kBad, "tensor 'second' ends at byte",
     [](auto& w) {
       w.tensor("second").dims = {8, 3};
     }},
    {"OffsetPastTheEnd", kBad, "tensor 'second' ends at byte 1,000,",
     [](auto& w) { w.tensor("second").offset = 1'000'000; }},
    {"OffsetOverflow", kBad, "tensor 'second' ends past byte 2^64",
     [](auto& w) { w.tensor("second").offset = ~uint64_t{31}; }},
    {"OffsetUnaligned", kBad,
     "tensor 'second' has offset 33, expected a multiple of the alignment 32",
     [](auto& w) { w.tensor("second").offset = 33; }},
    {"Overlap", kBad,
     "tensor 'second' starts at byte 160, inside tensor 'first' (bytes 160 to 192)",
     [](auto& w) { w.tensor("second").offset = 0; }},
    {"UnknownTypePastTheEnd", kBad, "tensor 'second' ends at byte",
     [](auto& w) {
       w.tensor("second").type_id = kQ4_KTensor;
       w.tensor("second").offset = 4096;
     }},
    {"RowsOfPartsOfGroups", kBad, "has rows of 8 elements, expected a multiple of 32 for type Q8_0",
     [](auto& w) { w.tensor("second").type_id = GgufTypeId(TensorType::kQ8_0); }},
    {"NameWithControlCharacters", kBad, "tensor 'a\\x0ab\\x00\\xff' at byte",
     [](auto& w) { w.AddTensor(std::string("a\nb\0\xff", 5), kF32Tensor, {0}, ""); }},
};

INSTANTIATE_TEST_SUITE_P(Files, Broken, testing::ValuesIn(kBrokenFiles),
                         [](const auto& broken) { return broken.param.name; });

TEST(GgufFile, RefusesEveryTruncation) {
  TinyModelOptions options;
  options.layers = 1;
  options.vocab = 260;
  GgufWriter writer = TinyModel(options);
  const std::string whole = writer.Bytes();
  const Parsed parsed(whole);
  ASSERT_TRUE(parsed.file.ok()) << parsed.file.status().ToString();
  const size_t data_start = (*parsed.file)->tensors()[0].file_offset;
  size_t step = 1;
  for (size_t size = 0; size < whole.size(); size += step) {
    if (size > data_start) step = 257;
    const Parsed cut(std::string_view(whole).substr(0, size));
    ASSERT_FALSE(cut.file.ok()) << size;
    const std::string& message = cut.file.status().message();
    ASSERT_THAT(message, AllOf(StartsWith("some.gguf: "), HasSubstr("truncated?"))) << size;
  }
}

TEST(GgufFile, SaysWhereATensorEnds) {
  GgufWriter writer;
  writer.AddTensor("blk.3.ffn_up.weight", kF32Tensor, {300'000}, std::string(1'200'000, 'x'));
  const std::string bytes = writer.Bytes();
  EXPECT_EQ(Parsed(bytes.substr(0, bytes.size() - 1)).file.status().message(),
            "some.gguf: tensor 'blk.3.ffn_up.weight' ends at byte 1,200,096, past the end of the "
            "file (1,200,095 bytes): truncated?");
}

TEST(GgufFile, OpensFilesAndNothingElse) {
  const ScratchFolder folder;
  const std::string good = folder.File("good.gguf");
  WriteTinyModel(good);
  const auto opened = GgufFile::Open(good);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  struct stat facts;
  ASSERT_EQ(stat(good.c_str(), &facts), 0);
  EXPECT_EQ((*opened)->identity()->inode, facts.st_ino);
  EXPECT_EQ((*opened)->identity()->size_bytes, uint64_t(facts.st_size));

  const auto error = [](const std::string& path) {
    const auto result = GgufFile::Open(path);
    return result.ok() ? "OK" : result.status().ToString();
  };
  const std::string missing = folder.File("missing.gguf");
  EXPECT_EQ(error(missing),
            "NOT_FOUND: " + missing + ": cannot be opened: No such file or directory");
  EXPECT_EQ(error(folder.path()),
            "INVALID_ARGUMENT: " + folder.path() + ": is a directory, expected a model file");
  const std::string pipe = folder.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error(pipe),
            "INVALID_ARGUMENT: " + pipe + ": is not a regular file, expected a model file");
  const std::string empty = folder.File("empty.gguf");
  WriteFile(empty, "");
  EXPECT_EQ(error(empty),
            "INVALID_ARGUMENT: " + empty + ": is empty (0 bytes), expected a model file");
  const std::string text = folder.File("text.gguf");
  WriteFile(text, "#!/bin/sh\n");
  EXPECT_EQ(error(text), "INVALID_ARGUMENT: " + text +
                             ": is not a GGUF file: starts with '#!/b', expected 'GGUF'");
  ASSERT_EQ(chmod(good.c_str(), 0), 0);
  const OrdinaryUser user;
  EXPECT_THAT(error(good),
              AllOf(StartsWith("PERMISSION_DENIED: "), HasSubstr("Permission denied")));
}

TEST(MessageText, IsReadable) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(98362432), "98,362,432");
  EXPECT_EQ(Quoted("a\tb"), "'a\\x09b'");
  EXPECT_EQ(Quoted(std::string(200, 'x')).size(), 85u);
}

}  // namespace
}  // namespace cairn
