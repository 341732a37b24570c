#!/bin/sh
# Fails when a source file is not as clang-format would lay it out. `tools/check_format.sh --fix` formats instead.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" = --fix ]; then
  set -- -i
else
  set -- --dry-run -Werror
fi
find base kernels offload engine service tests \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 |
  xargs -0 -n 16 -P 2 clang-format "$@"
