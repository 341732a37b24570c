#!/bin/sh
# clang-tidy (its checks: .clang-tidy) over the sources of every layer, or over the files that are named.
#
#   lint.sh BUILD [FILE...]
#
# BUILD has the compile commands and must be built: headers are generated.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
if [ $# -eq 0 ]; then
  # shellcheck disable=SC2046  # one word for each source
  set -- $(find base kernels offload engine service -name '*.cc' | sort)
fi
# The commands are GCC's: clang does not know all of their warnings.
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 clang-tidy-16 -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option
