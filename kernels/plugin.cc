#include "kernels/plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "kernels/plugin_build.h"
#include "kernels/plugin_interface.h"

namespace cairn {
namespace {

// Loads a library for good. The Status ends with what the system says.
Result<void*> Load(const std::string& library, const std::string& problem) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  return FailedPrecondition(problem + ": " + dlerror());
}

template <class F>
F* Find(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

}  // namespace

Result<Backend> LoadCudaBackend(const CudaBackendOptions& options) {
  std::error_code error;
  if (!std::filesystem::exists(options.plugin, error)) {
    return NotFound("this build has no CUDA plugin: there is no " + options.plugin);
  }
  RETURN_IF_ERROR(Load(options.driver, "there is no NVIDIA driver").status());
  ASSIGN_OR_RETURN(void* const plugin, Load(options.plugin, "the CUDA plugin cannot be loaded"));
  const auto build = Find<PluginBuild>(plugin, kPluginBuildName);
  const auto make_backend = Find<PluginMakeBackend>(plugin, kPluginMakeBackendName);
  if (build == nullptr || make_backend == nullptr || std::string_view(build()) != kPluginBuildId) {
    return FailedPrecondition(options.plugin + " is a plugin of another build");
  }
  Result<Backend> backend = Status(Code::kInternal, "the plugin has not answered");
  make_backend(options.mode, backend);
  return backend;
}

}  // namespace cairn
