#!/bin/sh
# clang-tidy (its checks: .clang-tidy) over the sources of every layer, or over the files that are named.
# It reads the compile commands of build/release, which must be built: headers are generated.
set -eu
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
  # shellcheck disable=SC2046  # one word for each source
  set -- $(find base kernels offload engine service -name '*.cc' | sort)
fi
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 clang-tidy-16 -p build/release --quiet
