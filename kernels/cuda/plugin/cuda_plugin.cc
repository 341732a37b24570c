// What kernels/plugin_interface.h asks of a plugin.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/plugin_build.h"
#include "kernels/plugin_interface.h"

namespace cairn {

extern "C" __attribute__((visibility("default"))) const char* CairnPluginBuild() {
  return kPluginBuildId;
}

extern "C" __attribute__((visibility("default"))) void CairnPluginMakeBackend(
    ComputeMode mode, Result<Backend>& result) {
  result = cuda::MakeCudaBackend(mode);
}

}  // namespace cairn
