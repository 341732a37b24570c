// What the loader has to know about the numbers in a tensor.
// Threads: pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace cairn {

// The index of the first group (kernels/ops.h) whose scale or offset is NaN or infinite; for F32,
// F16 and BF16 that of the first element that is. One pass at the speed of memory. `bytes` are
// whole groups, at any address.
std::optional<size_t> FirstNonFinite(TensorType type, std::span<const std::byte> bytes);

// IEEE 754 binary16 to binary32, exact.
float HalfToFloat(uint16_t half);

// The elements of an F32, F16 or BF16 tensor; CHECKs that it is of such a type.
std::vector<float> ToFloats(TensorType type, std::span<const std::byte> bytes);

}  // namespace cairn
