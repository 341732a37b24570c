#include "engine/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "base/check.h"

namespace cairn {
namespace {

// White space as Unicode's White_Space property has it. PCRE2's own \s also takes U+180E, which
// left that property in Unicode 6.3.
#define WS R"(\x09-\x0d \x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
#define SPACE "[" WS "]"
#define SYMBOL "[^" WS R"(\p{L}\p{N}])"

// Of a run of white space, the last character is left to the word that follows.
constexpr char kGpt2[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?)" SYMBOL "+|" SPACE "+(?![^" WS "])|" SPACE "+";

// GPT-2's cut after a first one that sets every digit apart: no piece, and no look-ahead, reaches
// across a digit, so white space before a digit stays whole.
constexpr char kSmolLm[] = R"('s|'t|'re|'ve|'m|'ll|'d|\p{N}| ?\p{L}+| ?)" SYMBOL "+|" SPACE
                           "+(?![^" WS R"(\p{N}])|)" SPACE "+";

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?)" SYMBOL
    R"(+[\r\n]*|)" SPACE R"(*[\r\n]+|)" SPACE "+(?![^" WS "])|" SPACE "+";

#undef WS
#undef SPACE
#undef SYMBOL

struct Scheme {
  std::string_view name;
  const char* pattern;
  bool whole_pieces_first;
};

constexpr Scheme kSchemes[] = {
    {"", kGpt2, false},          {"default", kGpt2, false},    {"gpt-2", kGpt2, false},
    {"smollm", kSmolLm, false},  {"llama-bpe", kLlama3, true}, {"llama3", kLlama3, true},
    {"llama-v3", kLlama3, true},
};

const Scheme* FindScheme(std::string_view name) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.name == name) return &scheme;
  }
  return nullptr;
}

pcre2_code* AsCode(void* code) { return static_cast<pcre2_code*>(code); }

}  // namespace

Result<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  const Scheme* scheme = FindScheme(name);
  if (scheme == nullptr) {
    return InvalidArgument("tokenizer.ggml.pre: expected smollm, gpt-2 or llama-bpe, found \"" +
                           std::string(name) + "\"");
  }
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(scheme->pattern), PCRE2_ZERO_TERMINATED,
                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &error_offset, nullptr);
  CHECK(code != nullptr);  // the patterns are constants
  // Where the machine has no just-in-time compiler, PCRE2 interprets: slower, same matches.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  // A match may be as long as the text, so the limits that guard against hostile patterns are off;
  // these patterns backtrack at most once over a run of white space.
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  CHECK(context != nullptr);
  pcre2_set_match_limit(context, UINT32_MAX);
  pcre2_set_depth_limit(context, UINT32_MAX);
  pcre2_set_heap_limit(context, UINT32_MAX);
  return std::unique_ptr<const PreTokenizer>(
      new PreTokenizer(code, context, scheme->whole_pieces_first));
}

PreTokenizer::PreTokenizer(void* code, void* context, bool whole_pieces_first)
    : code_(code), context_(context), whole_pieces_first_(whole_pieces_first) {}

PreTokenizer::~PreTokenizer() {
  pcre2_match_context_free(static_cast<pcre2_match_context*>(context_));
  pcre2_code_free(AsCode(code_));
}

PreTokenizer::Pieces::Pieces(const PreTokenizer& pre_tokenizer, std::string_view text)
    : pre_tokenizer_(pre_tokenizer),
      text_(text),
      match_(pcre2_match_data_create_from_pattern(AsCode(pre_tokenizer.code_), nullptr)) {
  CHECK(match_ != nullptr);
}

PreTokenizer::Pieces::~Pieces() { pcre2_match_data_free(static_cast<pcre2_match_data*>(match_)); }

std::optional<std::string_view> PreTokenizer::Pieces::Next() {
  if (at_ == text_.size()) return std::nullopt;
  pcre2_match_data* match = static_cast<pcre2_match_data*>(match_);
  // Without NO_UTF_CHECK every match would validate the whole rest of the text again.
  const int count = pcre2_match(
      AsCode(pre_tokenizer_.code_), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at_,
      PCRE2_NO_UTF_CHECK, match, static_cast<pcre2_match_context*>(pre_tokenizer_.context_));
  CHECK(count > 0);
  const size_t end = pcre2_get_ovector_pointer(match)[1];
  CHECK(end > at_);
  const std::string_view piece = text_.substr(at_, end - at_);
  at_ = end;
  return piece;
}

}  // namespace cairn
