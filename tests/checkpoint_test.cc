// Models: the real one, tiny ones of every shape, and ones that contradict themselves.
#include "engine/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>

#include "base/digest.h"
#include "engine/rope.h"
#include "engine/tensor_values.h"
#include "tests/fakes/gguf_writer.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// The bytes must outlive the checkpoint.
Result<Checkpoint> Load(std::string_view bytes) {
  ASSIGN_OR_RETURN(auto file, GgufFile::Parse(std::as_bytes(std::span(bytes)), "tiny.gguf"));
  return Checkpoint::FromFile(std::move(file));
}

// Kilobytes that the process has resident of files.
size_t ResidentFileKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    size_t kilobytes = 0;
    if (word == "RssFile:" && status >> kilobytes) return kilobytes;
  }
  return 0;
}

TEST(Checkpoint, OpensTheRealModel) {
  const auto checkpoint = Checkpoint::Open(CAIRN_MODEL_FILE);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "Smollm2 135M 8k Lc100K Mix1 Ep2");
  EXPECT_EQ(config.layer_count, 30u);
  EXPECT_EQ(config.width, 576u);
  EXPECT_EQ(config.head_count, 9u);
  EXPECT_EQ(config.kv_head_count, 3u);
  EXPECT_EQ(config.head_dim, 64u);
  EXPECT_EQ(config.ffn_width, 1536u);
  EXPECT_EQ(config.vocabulary_size, 49152u);
  EXPECT_EQ(config.context_length, 8192u);
  EXPECT_EQ(config.rope_dim, 64u);
  EXPECT_EQ(config.rope_base, 100000);
  EXPECT_EQ(config.rope_linear_factor, 1);
  EXPECT_TRUE(config.rope_factors.empty());
  EXPECT_EQ(config.rms_epsilon, 1e-5f);
  EXPECT_EQ(config.parameter_count, 134515008u);
  EXPECT_TRUE(checkpoint->tied_output());
  EXPECT_EQ(checkpoint->embedding().type, TensorType::kQ8_0);
  EXPECT_EQ(checkpoint->layers().size(), 30u);
  EXPECT_EQ(checkpoint->layers()[29].down.type, TensorType::kQ4_1);
}

TEST(Checkpoint, LetsGoOfPages) {
  const auto checkpoint = Checkpoint::Open(CAIRN_MODEL_FILE);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const auto digest = [&] {
    DigestStream all;
    for (const GgufTensor& tensor : checkpoint->file().tensors()) all.Add(tensor.bytes);
    return all.Finish();
  };
  const Digest before = digest();
  const size_t resident = ResidentFileKilobytes();
  EXPECT_GT(resident, 90'000u);
  for (const GgufTensor& tensor : checkpoint->file().tensors()) {
    checkpoint->file().ReleasePages(tensor.bytes);
  }
  EXPECT_LT(ResidentFileKilobytes(), resident - 85'000);
  EXPECT_EQ(digest(), before);
}

TEST(Checkpoint, TakesEveryTypeAndShape) {
  struct Shape {
    uint32_t heads, kv_heads, head_dim;
    bool tied;
  };
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    for (const Shape shape :
         {Shape{4, 4, 16, true}, Shape{4, 2, 16, false}, Shape{4, 1, 32, true}}) {
      TinyModelOptions options;
      options.type = type;
      options.heads = shape.heads;
      options.kv_heads = shape.kv_heads;
      options.head_dim = shape.head_dim;
      options.tied = shape.tied;
      const std::string bytes = TinyModel(options).Bytes();
      const auto checkpoint = Load(bytes);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
      EXPECT_EQ(checkpoint->config().kv_head_count, shape.kv_heads);
      EXPECT_EQ(checkpoint->config().head_dim, shape.head_dim);
      const LayerWeights& layer = checkpoint->layers()[1];
      EXPECT_EQ(layer.q.type, type);
      EXPECT_EQ(layer.q.rows, shape.heads * shape.head_dim);
      EXPECT_EQ(layer.k.rows, shape.kv_heads * shape.head_dim);
      EXPECT_EQ(layer.k.cols, options.width);
      EXPECT_EQ(layer.o.cols, shape.heads * shape.head_dim);
      EXPECT_EQ(layer.down.cols, options.ffn);
      EXPECT_EQ(layer.attn_norm.size(), options.width);
      EXPECT_THAT(layer.ffn_norm, Each(testing::AllOf(testing::Ge(0.75f), testing::Le(1.25f))));
      EXPECT_EQ(checkpoint->tied_output(), shape.tied);
      EXPECT_EQ(checkpoint->output().bytes.data() == checkpoint->embedding().bytes.data(),
                shape.tied);
    }
  }
}

TEST(Checkpoint, FillsInWhatFilesLeaveOut) {
  GgufWriter writer = TinyModel({.heads = 4, .kv_heads = 4});
  for (const char* key : {"general.name", "llama.vocab_size", "llama.attention.head_count_kv",
                          "llama.rope.dimension_count", "llama.rope.freq_base"}) {
    writer.Remove(key);
  }
  const std::string bytes = writer.Bytes();
  const auto checkpoint = Load(bytes);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->config().name, "tiny.gguf");
  EXPECT_EQ(checkpoint->config().vocabulary_size, 320u);
  EXPECT_EQ(checkpoint->config().kv_head_count, 4u);
  EXPECT_EQ(checkpoint->config().rope_dim, 16u);
  EXPECT_EQ(checkpoint->config().rope_base, 10000);
}

struct BrokenModel {
  const char* name;
  Code code;
  const char* message;  // a part of it
  std::function<void(GgufWriter&)> change;
};

void PrintTo(const BrokenModel& broken, std::ostream* out) { *out << broken.name; }

class Broken : public testing::TestWithParam<BrokenModel> {};

TEST_P(Broken, IsRefusedInOneLine) {
  GgufWriter writer = TinyModel({.type = TensorType::kQ4_1, .tied = false});
  GetParam().change(writer);
  const std::string bytes = writer.Bytes();
  const auto checkpoint = Load(bytes);
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.status().code(), GetParam().code);
  EXPECT_THAT(
      checkpoint.status().message(),
      AllOf(StartsWith("tiny.gguf: "), HasSubstr(GetParam().message), Not(HasSubstr("\n"))));
}

void Poke(GgufWriter& writer, const char* tensor, size_t at, std::string_view bytes) {
  writer.tensor(tensor).data.replace(at, bytes.size(), bytes);
}

constexpr Code kBad = Code::kInvalidArgument;
constexpr Code kForeign = Code::kUnimplemented;
constexpr Code kMissing = Code::kNotFound;
constexpr std::string_view kHalfNan("\x01\x7e", 2);
constexpr std::string_view kHalfInfinity("\x00\xfc", 2);
constexpr std::string_view kFloatNan("\x00\x00\xc0\x7f", 4);
const BrokenModel kBrokenModels[] = {
    {"Architecture", kForeign, "key 'general.architecture' is 'qwen2', expected 'llama'",
     [](auto& w) { w.SetString("general.architecture", "qwen2"); }},
    {"NoArchitecture", kMissing, "key 'general.architecture' is missing",
     [](auto& w) { w.Remove("general.architecture"); }},
    {"NoLayerCount", kMissing, "key 'llama.block_count' is missing",
     [](auto& w) { w.Remove("llama.block_count"); }},
    {"NoLayers", kBad, "key 'llama.block_count' is 0, expected 1 to 1,024",
     [](auto& w) { w.SetU32("llama.block_count", 0); }},
    {"TooManyLayers", kBad, "key 'llama.block_count' is 1,025, expected 1 to 1,024",
     [](auto& w) { w.SetU32("llama.block_count", 1025); }},
    {"OneLayerMore", kMissing, "tensor 'blk.2.attn_norm.weight' is missing",
     [](auto& w) { w.SetU32("llama.block_count", 3); }},
    {"OneLayerLess", kForeign, "tensor 'blk.1.attn_norm.weight' [64] has no place",
     [](auto& w) { w.SetU32("llama.block_count", 1); }},
    {"TooWide", kBad, "key 'llama.embedding_length' is 65,537, expected 1 to 65,536",
     [](auto& w) { w.SetU32("llama.embedding_length", 65537); }},
    {"FfnTooWide", kBad, "key 'llama.feed_forward_length' is 1,048,577",
     [](auto& w) { w.SetU32("llama.feed_forward_length", (1 << 20) + 1); }},
    {"FfnPerLayer", kBad, "key 'llama.feed_forward_length' at byte",
     [](auto& w) {
       w.SetI32s("llama.feed_forward_length", std::vector<int32_t>{128, 128});
     }},
    {"VocabularyTooLarge", kBad, "key 'llama.vocab_size' is 1,048,577, expected 1 to 1,048,576",
     [](auto& w) { w.SetU32("llama.vocab_size", (1 << 20) + 1); }},
    {"VocabularyOther", kBad, "'token_embd.weight' at byte",
     [](auto& w) { w.SetU32("llama.vocab_size", 321); }},
    {"ContextTooLong", kBad, "key 'llama.context_length' is 16,777,217",
     [](auto& w) { w.SetU32("llama.context_length", (1 << 24) + 1); }},
    {"TooManyHeads", kBad, "key 'llama.attention.head_count' is 2,000, expected 1 to 1,024",
     [](auto& w) { w.SetU32("llama.attention.head_count", 2000); }},
    {"HeadsDoNotDivide", kBad,
     "'llama.embedding_length' is 64, expected a multiple of the head count 3",
     [](auto& w) {
       w.SetU32("llama.attention.head_count", 3);
       w.SetU32("llama.attention.head_count_kv", 3);
     }},
    {"KvHeadsDoNotDivide", kBad,
     "'llama.attention.head_count_kv' is 3, expected a divisor of the head count 4",
     [](auto& w) { w.SetU32("llama.attention.head_count_kv", 3); }},
    {"KvHeadsOther", kBad, "tensor 'blk.0.attn_k.weight' at byte",
     [](auto& w) { w.SetU32("llama.attention.head_count_kv", 1); }},
    {"ValuesOfOtherSize", kBad,
     "'llama.attention.value_length' is 8, expected the size of a key, 16",
     [](auto& w) { w.SetU32("llama.attention.value_length", 8); }},
    {"RopeOdd", kBad, "is 15, expected an even number up to the head size 16",
     [](auto& w) { w.SetU32("llama.rope.dimension_count", 15); }},
    {"RopeWiderThanAHead", kBad, "is 18, expected an even number up to the head size 16",
     [](auto& w) { w.SetU32("llama.rope.dimension_count", 18); }},
    {"RopeBaseNan", kBad, "key 'llama.rope.freq_base' is nan, expected a finite number above 0",
     [](auto& w) { w.SetF32("llama.rope.freq_base", std::numeric_limits<float>::quiet_NaN()); }},
    {"RopeFactorZero", kBad, "key 'llama.rope.scaling.factor' is 0",
     [](auto& w) { w.SetF32("llama.rope.scaling.factor", 0); }},
    {"Yarn", kForeign, "key 'llama.rope.scaling.type' is 'yarn', expected 'linear' or 'none'",
     [](auto& w) { w.SetString("llama.rope.scaling.type", "yarn"); }},
    {"RopeFactorsOfOtherSize", kBad, "'rope_freqs.weight' at byte",
     [](auto& w) { w.AddTensor("rope_freqs.weight", 0, {4}, std::string(16, '\x3f')); }},
    {"RopeFactorsNegative", kBad, "at index 0, expected numbers above 0",
     [](auto& w) { w.AddTensor("rope_freqs.weight", 0, {8}, std::string(32, '\xbf')); }},
    {"EpsilonZero", kBad, "'llama.attention.layer_norm_rms_epsilon' is 0.0",
     [](auto& w) { w.SetF32("llama.attention.layer_norm_rms_epsilon", 0); }},
    {"EpsilonNan", kBad, "'llama.attention.layer_norm_rms_epsilon' is nan",
     [](auto& w) { w.SetF32("llama.attention.layer_norm_rms_epsilon", std::nanf("")); }},
    {"Experts", kForeign, "key 'llama.expert_count' is 8, expected 0",
     [](auto& w) { w.SetU32("llama.expert_count", 8); }},
    {"NoEmbedding", kMissing, "tensor 'token_embd.weight' is missing",
     [](auto& w) { w.RemoveTensor("token_embd.weight"); }},
    {"NoOutputNorm", kMissing, "tensor 'output_norm.weight' is missing",
     [](auto& w) { w.RemoveTensor("output_norm.weight"); }},
    {"NoDown", kMissing, "tensor 'blk.1.ffn_down.weight' is missing",
     [](auto& w) { w.RemoveTensor("blk.1.ffn_down.weight"); }},
    {"Transposed", kBad, "has shape [128, 64], expected [64, 128]",
     [](auto& w) {
       w.tensor("blk.0.ffn_up.weight").dims = {128, 64};
     }},
    {"ThreeDimensions", kBad, "has shape [64, 128, 1], expected [64, 128]",
     [](auto& w) {
       w.tensor("blk.0.ffn_up.weight").dims = {64, 128, 1};
     }},
    {"Bias", kForeign, "tensor 'blk.0.attn_q.bias' [64] has no place in a llama model",
     [](auto& w) { w.AddTensor("blk.0.attn_q.bias", 0, {64}, std::string(256, '\0')); }},
    {"TypeUnknown", kForeign, "is type 12, expected one of F32, F16, BF16, Q8_0, Q4_0, Q4_1",
     [](auto& w) { w.tensor("blk.0.ffn_up.weight").type_id = 12; }},
    {"NormQuantised", kBad, "is Q8_0, expected F32, F16 or BF16",
     [](auto& w) { w.tensor("output_norm.weight").type_id = 8; }},
    {"ScaleNan", kBad, "tensor 'blk.1.attn_v.weight' at byte",
     [](auto& w) { Poke(w, "blk.1.attn_v.weight", 40, kHalfNan); }},
    {"OffsetInfinite", kBad, "has a scale that is NaN or infinite",
     [](auto& w) { Poke(w, "blk.1.attn_v.weight", 1262, kHalfInfinity); }},
    {"EmbeddingScaleNan", kBad, "tensor 'token_embd.weight' at byte",
     [](auto& w) { Poke(w, "token_embd.weight", 34 * 639, kHalfNan); }},
    {"NormNan", kBad, "has a value that is NaN or infinite",
     [](auto& w) { Poke(w, "output_norm.weight", 252, kFloatNan); }},
};

INSTANTIATE_TEST_SUITE_P(Models, Broken, testing::ValuesIn(kBrokenModels),
                         [](const auto& broken) { return broken.param.name; });

// Any byte of the header may be wrong in any way: the model loads or is refused, in one line.
TEST(Checkpoint, SurvivesEveryFlippedHeaderByte) {
  const std::string good = TinyModel({.layers = 1, .vocab = 260}).Bytes();
  const auto checkpoint = Load(good);
  ASSERT_TRUE(checkpoint.ok());
  const size_t data_start = checkpoint->file().tensors()[0].file_offset;
  size_t refused = 0;
  std::string bytes = good;
  for (size_t i = 0; i < data_start; ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      bytes[i] = static_cast<char>(good[i] ^ flip);
      const auto changed = Load(bytes);
      if (changed.ok()) continue;
      ++refused;
      ASSERT_THAT(changed.status().message(),
                  AllOf(StartsWith("tiny.gguf: "), Not(HasSubstr("\n"))))
          << i;
    }
    bytes[i] = good[i];
  }
  EXPECT_GT(refused, data_start / 2);
}

TEST(TensorValues, FindsTheFirstNonFinite) {
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    const TensorTypeTraits traits = TraitsOf(type);
    const std::vector<float> ones(size_t{5000} * traits.group_elements, 1.0f);
    const std::string good = EncodeTensor(type, ones);
    EXPECT_EQ(FirstNonFinite(type, std::as_bytes(std::span(good))), std::nullopt);
    for (const size_t group : {0, 1, 4095, 4096, 4999}) {
      std::string bad = good;
      const bool half = traits.group_elements > 1 || type == TensorType::kF16;
      const size_t top = group * traits.group_bytes + (half ? 2 : traits.group_bytes) - 2;
      bad.replace(top, 2, half ? std::string("\x00\x7c", 2) : std::string("\x80\xff", 2));
      EXPECT_EQ(FirstNonFinite(type, std::as_bytes(std::span(bad))), group) << traits.name;
    }
  }
}

TEST(TensorValues, HalfToFloatIsExact) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    const int exponent = half >> 10 & 31;
    const double fraction = half & 1023;
    const double sign = half & 0x8000 ? -1 : 1;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0);
      EXPECT_EQ(std::isinf(value), fraction == 0);
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(value, sign * magnitude) << half;
    ASSERT_EQ(std::signbit(value), sign < 0) << half;
  }
}

// The defining property, in long double.
void ExpectAngles(const ModelConfig& config, double extension,
                  const std::function<long double(uint32_t, uint32_t)>& angle) {
  const uint32_t position_count = 20000;
  const std::vector<float> table = RopeCosSin(config, position_count, extension);
  ASSERT_EQ(table.size(), size_t{position_count} * config.rope_dim);
  for (uint32_t position = 0; position < position_count; position += 1 + position / 7) {
    for (uint32_t pair = 0; pair < config.rope_dim / 2; ++pair) {
      const float* entry = &table[size_t{position} * config.rope_dim + 2 * pair];
      ASSERT_NEAR(entry[0], std::cos(angle(position, pair)), 6.1e-8) << position << " " << pair;
      ASSERT_NEAR(entry[1], std::sin(angle(position, pair)), 6.1e-8) << position << " " << pair;
    }
  }
}

TEST(Rope, TurnsByPosition) {
  ModelConfig config;
  config.rope_dim = 64;
  config.rope_base = 100000;
  config.context_length = 8192;
  const auto frequency = [](uint32_t pair) { return std::pow(100000.0L, -2.0L * pair / 64); };
  ExpectAngles(config, 1,
               [&](uint32_t position, uint32_t pair) { return position * frequency(pair); });
  config.rope_linear_factor = 4;
  ExpectAngles(config, 2.5, [&](uint32_t position, uint32_t pair) {
    return position / 10.0L * frequency(pair);
  });
  config.rope_linear_factor = 1;
  for (uint32_t pair = 0; pair < 32; ++pair) config.rope_factors.push_back(1.0f + pair % 8);
  ExpectAngles(config, 1, [&](uint32_t position, uint32_t pair) {
    return position * frequency(pair) / (1.0L + pair % 8);
  });
  EXPECT_EQ(ContextExtension(config, 8192), 1);
  EXPECT_EQ(ContextExtension(config, 100), 1);
  EXPECT_EQ(ContextExtension(config, 12288), 1.5);
}

TEST(Rope, ComesFromTheFile) {
  const std::vector<float> factors = {1, 1, 1, 2, 4, 8, 8, 8};
  const std::string bytes =
      TinyModel({.rope_base = 5e5f, .rope_linear_factor = 2, .rope_factors = factors}).Bytes();
  const auto checkpoint = Load(bytes);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->config().rope_base, 5e5);
  EXPECT_EQ(checkpoint->config().rope_linear_factor, 2);
  EXPECT_EQ(checkpoint->config().rope_factors, factors);
}

}  // namespace
}  // namespace cairn
