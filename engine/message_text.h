// How numbers and names from a file are written into messages for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// "98,362,432".
std::string Grouped(uint64_t number);

// 'name', on one line whatever its bytes are: all but printable ASCII becomes \xNN, and what is
// longer than a name should be is cut.
std::string Quoted(std::string_view name);

}  // namespace cairn
