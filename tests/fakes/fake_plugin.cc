// A plugin for tests of how plugins are loaded. FAKE_PLUGIN_BUILD says of which build it is, and
// FAKE_PLUGIN_ERROR, if defined, why it has no backend; otherwise the CPU plays the device.
#include <utility>

#include "kernels/plugin_build.h"
#include "kernels/plugin_interface.h"

namespace cairn {

extern "C" const char* CairnPluginBuild() { return FAKE_PLUGIN_BUILD; }

extern "C" void CairnPluginMakeBackend(ComputeMode mode, Result<Backend>& result) {
#ifdef FAKE_PLUGIN_ERROR
  (void)mode;
  result = FailedPrecondition(FAKE_PLUGIN_ERROR);
#else
  result = MakeCpuBackend({.thread_count = 1, .mode = mode});
#endif
}

}  // namespace cairn
