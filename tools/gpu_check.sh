#!/bin/sh
# Checks and measures Cairn on the GPU of this machine, in at most eight minutes; docs/CUDA.md says what the table means.
#
#   tools/gpu_check.sh [--no-build] [FLAG...]
#
# Builds what it needs (build/release; a CUDA toolkit and Cairn's packages are there), then tools/gpu_check.py does the
# rest in what is left of the time, and gets the other flags (--help). What cannot be built fails the steps that need it.
# --no-build takes the binaries that are there: of a build, or, with --build FOLDER, those that
# `tools/gpu_check.py --pack FOLDER` brought from another machine.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" = --no-build ]; then
  shift
else
  begun=$(date +%s)
  # A third of the compiling, where nothing is there yet.
  native=
  [ -e build/release/CMakeCache.txt ] || native=-DCAIRN_CUDA_ARCHITECTURES=native
  cmake --preset release $native
  cmake --build --preset release --parallel "$(nproc)" --target gpu_check_programs -- -k 0 || echo "not everything was built" >&2
  set -- --begun "$begun" "$@"
fi
exec python3 tools/gpu_check.py "$@"
