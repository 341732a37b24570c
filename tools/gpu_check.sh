#!/bin/sh
# Checks and measures Cairn on the GPU of this machine, in at most eight minutes; docs/CUDA.md says what the table means.
#
#   tools/gpu_check.sh [--no-build] [FLAG...]
#
# Builds what it needs (build/release; a CUDA toolkit and Cairn's packages are there), then tools/gpu_check.py does the
# rest and gets the other flags (--help). --no-build takes the binaries that are there: of a build, or, with --build FOLDER,
# those that `tools/gpu_check.py --pack FOLDER` brought from another machine.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" = --no-build ]; then
  shift
else
  cmake --preset release
  cmake --build --preset release --parallel "$(nproc)" --target gpu_check_programs
fi
exec python3 tools/gpu_check.py "$@"
