// Flags that several commands share, bound straight to the request that they fill. Ranges are the
// server's to judge: what is out of bounds is sent as it is, and the answer names the field.
//
// Every message must outlive the parsing of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cairn/v1/common.pb.h"
#include "cairn/v1/session_service.pb.h"

namespace cairn {

// What a user can say about a content: text, messages or token ids.
struct ContentFlags {
  std::optional<std::string> text;    // "-": all of standard input
  std::vector<std::string> messages;  // "ROLE:TEXT"
  std::vector<uint32_t> token_ids;
  bool omit_generation_prompt = false;

  bool given() const { return text.has_value() || !messages.empty() || !token_ids.empty(); }
};

// `positional`: the text is also an argument without a flag.
void AddContentFlags(CLI::App& command, ContentFlags& flags, bool positional);

// The assistant's turn is opened where it can only be its turn: not after its own message or the
// system's. Throws CLI::ValidationError when the flags contradict each other.
v1::Content ContentOf(const ContentFlags& flags);

void AddSamplingFlags(CLI::App& command, v1::SamplingParams& sampling);

// Display name, life time, priority, pin, annotations and sampling defaults; each one that is given
// adds its name to `given`, as an update mask has it.
void AddSettingFlags(CLI::App& command, v1::Session& session, std::vector<std::string>& given);

// "sessions/{id}" of a name or of an id alone.
std::string SessionName(const std::string& name_or_id);

// What fills a request's field on the command line of `command`: "--top-p", or "<session>" for an
// argument without a flag; "" when nothing does.
std::string FlagOf(const CLI::App& command, const std::string& field);

}  // namespace cairn
