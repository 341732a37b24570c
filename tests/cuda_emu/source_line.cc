#include "tests/cuda_emu/source_line.h"

#include <backtrace.h>

#include <cstdint>

namespace cairn::cuemu {
namespace {

// The innermost frame comes first: the line itself, then those it was inlined into. A kernel's line
// says more than that of a header's helper, so the last one in a .cu file wins, or else the first.
int TakeLine(void* line_of, uintptr_t /*address*/, const char* file, int line,
             const char* /*function*/) {
  auto& found = *static_cast<std::string*>(line_of);
  if (file == nullptr) return 0;
  const std::string name = file;
  const bool kernel = name.ends_with(".cu");
  if (found != "?" && !kernel) return 0;
  found = name + ":" + std::to_string(line);
  return kernel ? 1 : 0;
}

void NoLine(void*, const char*, int) {}

}  // namespace

std::string SourceLineOf(const void* return_address) {
  // Reads the program's own file once; it is never given back.
  static backtrace_state* const state = backtrace_create_state(nullptr, 1, NoLine, nullptr);
  std::string line = "?";
  // The call is before the address that it returns to.
  backtrace_pcinfo(state, reinterpret_cast<uintptr_t>(return_address) - 1, TakeLine, NoLine, &line);
  return line;
}

}  // namespace cairn::cuemu
