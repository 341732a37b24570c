// How fast one thread turns English-like text into token ids and back.
//
//   tokenizer_bench MODEL.gguf [MEGABYTES]
//
// The text is drawn from a list of English words, the n-th with a frequency of 1/n (Zipf), with
// capitals, punctuation, numbers and paragraphs, from a fixed seed. Prints medians of 5 runs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/detokenizer.h"
#include "engine/gguf_file.h"
#include "engine/tokenizer.h"
#include "engine/vocabulary.h"

namespace cairn {
namespace {

constexpr char kWords[] =
    "the of and to a in is it you that he was for on are with as his they be at one have this from "
    "or had by hot but some what there we can out other were all your when up use word how said an "
    "each she which do their time if will way about many then them would write like so these her "
    "long make thing see him two has look more day could go come did my sound no most number who "
    "over know water than call first people may down side been now find any new work part take get "
    "place made live where after back little only round man year came show every good me give our "
    "under name very through just form much great think say help low line before turn cause same "
    "mean differ move right boy old too does tell sentence set three want air well also play small "
    "end put home read hand port large spell add even land here must big high such follow act why "
    "ask men change went light kind off need house picture try us again animal point mother world "
    "near build self earth father head stand own page should country found answer school grow "
    "study "
    "still learn plant cover food sun four thought let keep eye never last door between city tree "
    "cross since hard start might story saw far sea draw left late run while press close night "
    "real "
    "life few stop open seem together next white children begin got walk example ease paper often "
    "always music those both mark book letter until mile river car feet care second group carry "
    "took rain eat room friend began idea fish mountain north once base hear horse cut sure watch "
    "colour face wood main government development international community university information "
    "particularly understanding environmental responsibility nevertheless characteristic "
    "administration philosophical unprecedented straightforward infrastructure counterproductive "
    "photosynthesis jurisdiction entrepreneurial misunderstanding archaeologist thermodynamics "
    "Shakespeare Mediterranean Constantinople hydroelectric quintessential bureaucratic";

std::vector<std::string> Words() {
  std::istringstream stream{std::string(kWords)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string EnglishLikeText(size_t size_bytes) {
  const std::vector<std::string> words = Words();
  std::vector<double> cumulative;
  double total = 0;
  for (double rank = 1; cumulative.size() < words.size(); ++rank) {
    cumulative.push_back(total += 1 / rank);
  }
  Rng rng(1);
  std::string text;
  bool starts_sentence = true;
  while (text.size() < size_bytes) {
    const auto drawn =
        std::upper_bound(cumulative.begin(), cumulative.end() - 1, rng.Uniform() * total);
    std::string word = words[drawn - cumulative.begin()];
    if (rng.Chance(0.01)) word = std::to_string(rng.Below(3000));
    if (starts_sentence) word[0] = static_cast<char>(std::toupper(word[0]));
    text += word;
    starts_sentence = rng.Chance(0.07);
    if (starts_sentence) {
      text += rng.Chance(0.2) ? ".\n\n" : ". ";
    } else {
      text += rng.Chance(0.08) ? ", " : " ";
    }
  }
  return text;
}

double Megabytes(const std::string& text) { return static_cast<double>(text.size()) / 1e6; }

double MedianSeconds(const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  return seconds[2];
}

Status Run(const std::string& path, size_t size_bytes) {
  ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(*file));
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(vocabulary));
  const double create = MedianSeconds([&] { CHECK(Tokenizer::Create(vocabulary).ok()); });

  const std::string text = EnglishLikeText(size_bytes);
  std::vector<uint32_t> ids;
  const double encode = MedianSeconds([&] { ids = *tokenizer->Encode(text); });
  std::string back;
  const double decode = MedianSeconds([&] { back = Detokenize(*tokenizer, ids); });
  CHECK(back == text);
  // Nothing to cut: the whole text is one piece.
  const std::string run(1 << 20, 'a');
  const double long_piece = MedianSeconds([&] { CHECK(tokenizer->Encode(run).ok()); });

  const double megabytes = Megabytes(text);
  std::printf("create      %6.1f ms\n", create * 1e3);
  std::printf("encode      %6.1f MB/s  (%.1f MB of text, %.2f bytes a token)\n", megabytes / encode,
              megabytes, static_cast<double>(text.size()) / static_cast<double>(ids.size()));
  std::printf("decode      %6.1f MB/s\n", megabytes / decode);
  std::printf("long piece  %6.1f MB/s  (1 MiB of one letter)\n", Megabytes(run) / long_piece);
  return Status();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: tokenizer_bench MODEL.gguf [MEGABYTES]\n");
    return 2;
  }
  const size_t megabytes = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 8;
  const cairn::Status status = cairn::Run(argv[1], megabytes * 1000000);
  if (!status.ok()) std::fprintf(stderr, "tokenizer_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
