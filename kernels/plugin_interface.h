// What a plugin, a shared library with a backend, gives to the program that loads it. Both are of
// one build: they share classes, and every function of the C++ libraries but those of the plugin's
// own dependencies. Errors are Statuses; nothing is thrown out of it, logged or printed by it.
#pragma once

#include "base/status.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace cairn {

// Names of the functions, with C linkage, and their types.
inline constexpr const char* kPluginBuildName = "CairnPluginBuild";
inline constexpr const char* kPluginMakeBackendName = "CairnPluginMakeBackend";
using PluginBuild = const char*();  // PluginBuildId() of the build that made the plugin
// `result` is where the answer goes.
using PluginMakeBackend = void(ComputeMode mode, Result<Backend>& result);

}  // namespace cairn
