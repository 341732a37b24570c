#include "kernels/matrix_check.h"

#include <string>

namespace cairn {

Status CheckMatrix(const MatrixView& view) {
  const TensorTypeTraits traits = TraitsOf(view.type);
  const std::string shape = std::to_string(view.rows) + " x " + std::to_string(view.cols);
  if (view.rows == 0 || view.cols == 0) return InvalidArgument("matrix of " + shape);
  if (view.cols % traits.group_elements != 0) {
    return InvalidArgument(std::string(traits.name) + " matrix of " + shape +
                           ": columns are not a multiple of " +
                           std::to_string(traits.group_elements));
  }
  const uint64_t expected =
      uint64_t{view.rows} * (view.cols / traits.group_elements) * traits.group_bytes;
  if (view.bytes.size() != expected) {
    return InvalidArgument(std::string(traits.name) + " matrix of " + shape + ": expected " +
                           std::to_string(expected) + " bytes, found " +
                           std::to_string(view.bytes.size()));
  }
  return Status();
}

}  // namespace cairn
