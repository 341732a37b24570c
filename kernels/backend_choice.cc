#include "kernels/backend_choice.h"

#include <utility>

namespace cairn {

std::optional<BackendKind> ParseBackendKind(std::string_view name) {
  if (name == "auto") return BackendKind::kAuto;
  if (name == "cpu") return BackendKind::kCpu;
  if (name == "cuda") return BackendKind::kCuda;
  return std::nullopt;
}

Result<ChosenBackend> ChooseBackend(const BackendOptions& options) {
  std::string reason = "cpu: asked for";
  if (options.kind != BackendKind::kCpu) {
    Result<Backend> cuda = LoadCudaBackend(options.cuda);
    if (cuda.ok()) {
      const bool is_auto = options.kind == BackendKind::kAuto;
      return ChosenBackend{*std::move(cuda),
                           is_auto ? "cuda: there is a device" : "cuda: asked for"};
    }
    if (options.kind == BackendKind::kCuda) return cuda.status();
    reason = "cpu: " + cuda.status().message();
  }
  ASSIGN_OR_RETURN(Backend cpu, MakeCpuBackend(options.cpu));
  return ChosenBackend{std::move(cpu), std::move(reason)};
}

}  // namespace cairn
