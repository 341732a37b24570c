// The commands of cairnctl. Each function adds its commands, with their flags and their --help, to
// `app`; a command runs after the whole command line is parsed, and leaves its result in
// client.exit_code().
#pragma once

#include <CLI/CLI.hpp>

#include "service/ctl/client.h"

namespace cairn {

void AddSessionCommands(CLI::App& app, Client& client);  // session create, get, list, ...
void AddStreamCommands(CLI::App& app, Client& client);   // generate; session decode and read
void AddServerCommands(CLI::App& app,
                       Client& client);  // tokenize, detokenize, cache, model, health
void AddPlanRestore(CLI::App& app);      // plan-restore, which needs no server

}  // namespace cairn
