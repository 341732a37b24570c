// plan-restore: the restore planner as a filter, without a server.
#include <cstdio>
#include <string>

#include "engine/what_if.h"
#include "service/ctl/commands.h"

namespace cairn {
namespace {

constexpr char kHelp[] =
    "A problem a line, as JSON; the plan for each, or what is wrong with it, as another line:\n"
    "\n"
    "  {\"block_tokens\":16,\"block_bytes\":368640,\"layers\":30,\"new_tokens\":32,\n"
    "   \"pass_s\":0.0002,\"sweep_s\":0.004,\"per_token_s\":0.0007,\"per_token_position_s\":1e-7,\n"
    "   \"chunk_tokens\":512,\n"
    "   \"channels\":{\"h\":{\"latency_s\":0,\"per_copy_s\":2e-6,\"bytes_per_s\":8e9},\n"
    "    \"d\":{\"latency_s\":1e-4,\"per_copy_s\":1e-5,\"bytes_per_s\":4e7,\"then\":\"h\"}},\n"
    "   \"blocks\":\"..hhdd-dh\"}\n"
    "\n"
    "blocks: a letter a block: its channel, . on the device, - absent. then: the bytes cross that\n"
    "channel too. One pass over n tokens takes pass_s + max(sweep_s, n * per_token_s) +\n"
    "per_token_position_s * sum of positions; n blocks on a channel take latency_s + n * "
    "(per_copy_s\n"
    "+ block_bytes / bytes_per_s).\n"
    "\n"
    "Optional:\n"
    "  backlog_s (of a channel)  seconds of loads before these\n"
    "  comes_whole (the same)    true: wave uses no layer of a block before all of them are there\n"
    "  compute_backlog_s         seconds before the first pass can begin\n"
    "  decode_rows               rows of running streams in every pass\n"
    "  uncertainty               share of the prediction within which load-all is taken (0)\n"
    "  policy                    cairn, load_all, recompute_all, greedy, threshold, cake, cut\n"
    "                            or wave (cairn)\n"
    "  cut_share                 of the context, what cut computes from its beginning (0.5)\n"
    "  executions                of [\"front\",\"wave\"], those that may be used (both)\n"
    "  wave_tokens_max           tokens of one pass of wave (no bound)\n"
    "\n"
    "The answer's recompute lists blocks by index, in order; load_order lists those that each\n"
    "channel loads, first to load first; no_wave, where the policy is wave and there is none, "
    "says\n"
    "why. docs/DECISION.md has the model.\n";

// One line without its end; what is beyond the bound is read and left out. False: there is none.
bool ReadLine(std::FILE* file, std::string& line) {
  line.clear();
  int c = 0;
  while ((c = std::getc(file)) != EOF && c != '\n') {
    if (line.size() <= kWhatIfBytesMax) line += static_cast<char>(c);
  }
  return c != EOF || !line.empty();
}

}  // namespace

void AddPlanRestore(CLI::App& app) {
  CLI::App* sub =
      app.add_subcommand("plan-restore", "reload or recompute? Plans for costs on stdin");
  sub->footer(kHelp);
  sub->callback([] {
    std::string line;
    while (ReadLine(stdin, line)) {
      const std::string answer = AnswerWhatIf(line) + "\n";
      std::fwrite(answer.data(), 1, answer.size(), stdout);
      std::fflush(stdout);
    }
  });
}

}  // namespace cairn
