// Small files that several processes keep for one another, such as caches beside a model.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn {

// At most the first `bytes_max` bytes; empty when the file cannot be read, or is none.
std::string ReadSmallFile(const std::string& path, size_t bytes_max);

// Puts `text` in the file's place, whole or not at all: whoever reads it meanwhile finds the old
// text or the new one. False when it cannot; nothing is left behind then.
bool ReplaceSmallFile(const std::string& path, std::string_view text);

}  // namespace cairn
