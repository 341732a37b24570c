// A Device over the runtime API with nothing beside it: what the operations' tests need.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace cairn::cuda {

std::unique_ptr<Device> MakePlainDevice();

}  // namespace cairn::cuda
