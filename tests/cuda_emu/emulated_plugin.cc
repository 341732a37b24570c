// The CUDA backend on the emulator, as the plugin that cairnd loads. A FIFO named "faults" in the
// folder of the program, if there is one, says which calls are to fail (FailCall), at any time:
// "FUNCTION CALL_NUMBER ERROR", a line each. When what was written is in force there is a file
// "faults_taken".
#include <cuda_runtime.h>
#include <cuemu/emulator.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/plugin_build.h"
#include "kernels/plugin_interface.h"

namespace cairn {
namespace {

// Opening a FIFO waits for somebody who writes; its end is that of the last writer.
void TakeFaults(const std::filesystem::path& path, const std::filesystem::path& taken) {
  std::string function;
  int call_number = 0, error = 0;
  for (;;) {
    std::ifstream fifo(path);
    while (fifo >> function >> call_number >> error) {
      cuemu::FailCall(function, call_number, static_cast<cudaError_t>(error));
    }
    std::ofstream{taken};
  }
}

}  // namespace

extern "C" const char* CairnPluginBuild() { return kPluginBuildId; }

extern "C" void CairnPluginMakeBackend(ComputeMode mode, Result<Backend>& result) {
  cuemu::Configure({.device_memory_bytes = size_t{64} << 20});
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path folder = program.parent_path(), faults = folder / "faults";
  if (std::filesystem::is_fifo(faults)) {
    std::thread(TakeFaults, faults, folder / "faults_taken").detach();
  }
  result = cuda::MakeCudaBackend(mode);
}

}  // namespace cairn
