// The source line of an instruction of this program, from its debugging information ("?" without).
#pragma once

#include <string>

namespace cairn::cuemu {

std::string SourceLineOf(const void* return_address);

}  // namespace cairn::cuemu
