// The portable kernels' parts, one file each.
#pragma once

#include "kernels/cpu/cpu_kernels.h"

namespace cairn {

void PanelProductPortable(const PanelProductArgs& args);

}  // namespace cairn
