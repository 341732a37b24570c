#!/bin/sh
# Builds the yardstick of `./cairn bench`: llama.cpp, from the full source that the PyPI source package
# llama-cpp-python carries, Release and native, and the default model requantised to its fastest format.
#
# usage: tools/setup_llama_cpp.sh [JOBS]
# Everything lands in .cache/llama.cpp: bin/ has the programs, and the Q4_0 model lies beside the Q4_1 one in
# .cache/models. A finished part is not made again. About 10 to 20 minutes on two cores.
set -eu

cd "$(dirname "$0")/.."
version=0.3.36
jobs=${1:-$(nproc)}
home=.cache/llama.cpp
source=$home/source/llama_cpp_python-$version/vendor/llama.cpp
model=.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
requantised=.cache/models/SmolLM2-135M-Instruct.Q4_0.gguf
programs="llama-bench llama-batched-bench llama-quantize llama-server"

have_programs() {
  for program in $programs; do
    [ -x "$home/bin/$program" ] || return 1
  done
}

fetch_source() {
  [ -f "$source/CMakeLists.txt" ] && return
  echo "llama.cpp: downloading the source (77 MB)"
  mkdir -p "$home/sdist" "$home/source"
  .venv/bin/python -m pip download --quiet --no-deps --no-binary llama-cpp-python \
    --dest "$home/sdist" "llama-cpp-python==$version"
  tar -xzf "$home"/sdist/*.tar.gz -C "$home/source"
}

build_programs() {
  # Static libraries keep each program in one file; the web page of the server and HTTPS are not measured.
  cmake -S "$source" -B "$home/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=ON -DGGML_CCACHE=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >"$home/configure.log" 2>&1 || {
    tail -n 20 "$home/configure.log" >&2
    exit 1
  }
  # shellcheck disable=SC2086  # one word for each program
  ninja -C "$home/build" -j "$jobs" $programs
  mkdir -p "$home/bin"
  for program in $programs; do
    cp "$home/build/bin/$program" "$home/bin/$program"
  done
}

requantise() {
  [ -f "$requantised" ] && return
  echo "llama.cpp: requantising the model to Q4_0"
  "$home/bin/llama-quantize" --allow-requantize "$model" "$requantised.part" Q4_0 >"$home/quantize.log" 2>&1 || {
    tail -n 20 "$home/quantize.log" >&2
    exit 1
  }
  mv "$requantised.part" "$requantised"
}

[ -f "$model" ] || { echo "llama.cpp: $model is missing; run ./cairn setup first" >&2; exit 1; }
have_programs || { fetch_source; build_programs; }
requantise
echo "llama.cpp $version is ready in $home/bin"
