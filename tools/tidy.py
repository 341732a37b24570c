#!/usr/bin/env python3
"""Enforces the architecture and the style that a compiler cannot see; CTest runs it as `tidy`.

One run checks every C++ file of the tree: which layer may include which, where each foreign library is at home, include
cycles, sizes, and that each header compiles alone. Each finding is one line, `file:line: what is wrong`; the exit code
is 1 if there was any. The one exemption is service/main.cc, the composition root, which may include every layer.

The function finder reads clang-formatted code: a scope opens with " {", an initializer with "{" right after a name.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

LAYERS = {  # layer: what it may include beside itself
    "base": "",
    "kernels": "base",
    "offload": "base kernels/device.h kernels/kv_layout.h",
    "engine": "base kernels offload",
    "service": "base engine proto",
    "tests": "base kernels offload engine service proto",
}
COMPOSITION_ROOT = "service/main.cc"
PRIVATE = {"kernels/cpu/": "kernels/", "kernels/cuda/": "kernels/"}  # folder: who may include it; tests may too
EMULATOR_INCLUDE = "tests/cuda_emu/include/"
CUDA = r"cuda|cublas|driver_types|nvtx|cooperative_groups"
HOMES = [  # headers of a library, and the places that may include them
    (r"(grpcpp?|google/(protobuf|rpc)|cairn/v1)/|[\w/]*\.pb\.h", "gRPC and Protobuf", "service/ tests/"),
    (r"rocksdb/", "RocksDB", "offload/rocksdb_ tests/bench/rocksdb_"),
    (r"boost/asio", "Boost.Asio", "offload/"),
    (r"boost/context", "Boost.Context", "tests/cuda_emu/"),
    (CUDA, "CUDA", "kernels/cuda/ tests/cuda_ tests/cuda_emu/ tests/on_device/ tests/bench/cuda_"),
    (r"cuemu/", "the emulator of CUDA", "kernels/cuda/gpu.h tests/cuda_emu/"),
    (r"pcre2", "PCRE2", "engine/"),
    (r"CLI/", "CLI11", "service/ tests/"),
    (r"spdlog/|fmt/", "spdlog", "base/"),
    (r"gtest/|gmock/", "GoogleTest", "tests/"),
]
SUFFIXES = {".h", ".cc", ".cu"}
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
KERNEL_LINES_MAX = 120
COLUMNS_MAX = 100

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)
NOT_CODE = re.compile(  # comments, and strings and characters, whose braces are none
    r"""//[^\n]*|/\*.*?\*/|R"([^()\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""", re.S)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
INLINE_CONSTANT = re.compile(r"^inline constexpr [\w:<>, ]+? (k\w+)(?= =|\[|\{|;)", re.M)
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
SCOPE_WITHOUT_CODE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b(?!.*\)\s*(const|noexcept|->|$))", re.S)


def blank(match):
    return "\n" * match.group().count("\n")


class Source:
    """A file: its text, and its code with comments, strings and preprocessor lines blanked, line for line."""

    def __init__(self, root, path):
        self.path = path
        self.text = (root / path).read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.code = PREPROCESSOR.sub(blank, NOT_CODE.sub(blank, self.text))
        self.includes = []  # (line, target, quoted)
        for match in INCLUDE.finditer(self.text):
            line = self.text.count("\n", 0, match.start(match.lastindex)) + 1
            self.includes.append((line, match.group(match.lastindex), match.lastindex == 1))

    @property
    def layer(self):
        return self.path.split("/")[0]

    def functions(self):
        """(name, first line, line count) of every function body at namespace or class scope."""
        scopes = []  # True where the scope may hold functions
        header_start = 0
        skipped = 0  # depth inside a body or an initializer
        begin = None
        line_of = lambda offset: self.code.count("\n", 0, offset) + 1
        for match in re.finditer(r"[{};]|\b(?:public|private|protected):", self.code):
            at, what = match.start(), match.group()
            if skipped:
                skipped += {"{": 1, "}": -1}.get(what, 0)
                if skipped == 0 and begin:
                    name, first = begin
                    yield name, first, line_of(at) - first + 1
                    begin, header_start = None, match.end()
            elif what == "{":
                header = self.code[header_start:at]
                if not header[-1:].isspace() and header or header.rstrip().endswith("="):
                    skipped = 1
                elif "(" not in header or SCOPE_WITHOUT_CODE.search(header):
                    scopes.append(True)
                    header_start = match.end()
                else:
                    first = line_of(header_start + len(header) - len(header.lstrip()))
                    begin, skipped = (function_name(header), first), 1
            elif what == "}":
                if scopes:
                    scopes.pop()
                header_start = match.end()
            else:
                header_start = match.end()


def function_name(header):
    match = re.search(r"([\w:~]+|operator\S+)\s*\(", header)
    return match.group(1) if match else "function"


def allowed(path, places):
    """Whether `path` is one of `places`: a file, a folder, or the beginning of a name that ends with "_"."""
    return any(path == place or path.startswith(place if place.endswith("_") else place.rstrip("/") + "/")
               for place in places.split())


def check_includes(source):
    if source.path == COMPOSITION_ROOT:
        return
    for line, target, quoted in source.includes:
        top = target.split("/")[0]
        if quoted and top in LAYERS and top != source.layer and not allowed(target, LAYERS[source.layer]):
            yield line, f"{source.layer} may not use {target}"
        if quoted and top not in LAYERS and not re.match(HOMES[0][0], target):
            yield line, f"own headers are named from the top of the tree, not {target}"
        for folder, owner in PRIVATE.items():
            if target.startswith(folder) and not allowed(source.path, f"{owner} tests/"):
                yield line, f"{folder} is private to {owner}"
        for pattern, library, places in HOMES:
            if re.match(pattern, target) and not allowed(source.path, places):
                yield line, f"{library} is at home in {places} only"


def check_text(source):
    if len(source.lines) > FILE_LINES_MAX:
        yield len(source.lines), f"{len(source.lines)} lines; a file has at most {FILE_LINES_MAX}"
    for number, text in enumerate(source.lines, 1):
        if len(text) > COLUMNS_MAX:
            yield number, f"{len(text)} columns; a line has at most {COLUMNS_MAX}"
        if UNFINISHED.search(text):
            yield number, "finish it, or say in the documentation what is missing"
    for match in re.finditer(r"\b(secure_)?getenv\b", source.code):
        if source.path != COMPOSITION_ROOT:
            yield source.code.count("\n", 0, match.start()) + 1, f"the environment is read in {COMPOSITION_ROOT} only"
    budget = KERNEL_LINES_MAX if source.layer == "kernels" else FUNCTION_LINES_MAX
    for name, line, count in source.functions():
        if count > budget:
            yield line, f"{name} has {count} lines; a function has at most {budget} here"


def check_shape(source):
    is_program = re.search(r"\bint (main|LLVMFuzzerTestOneInput)\(", source.code)
    if "namespace cairn" not in source.code and not is_program:
        yield 1, "everything of ours is in namespace cairn"
    if source.path.endswith(".h"):
        if not source.text.startswith("//"):
            yield 1, "a header opens with its contract, as a comment"
        if source.text.count("#pragma once") != 1:
            yield 1, "a header has one #pragma once"


def check_tree(sources):
    """What one file alone does not show: constants with two homes, include cycles."""
    homes = {}  # two definitions of one inline constant: the linker keeps either, for both
    for source in sources.values():
        if source.path.endswith(".h"):
            spaces = " ".join(sorted(set(re.findall(r"namespace ([\w:]+)", source.code))))
            for constant in INLINE_CONSTANT.finditer(source.code):
                home = homes.setdefault((spaces, constant[1]), source.path)
                if home != source.path:
                    line = source.code.count("\n", 0, constant.start()) + 1
                    yield source.path, line, f"{constant[1]} is defined in {home} too"
    done, stack = set(), []

    def visit(path):
        if path in stack:
            yield path, 1, "include cycle: " + " -> ".join(stack[stack.index(path):] + [path])
        elif path not in done and path in sources:
            stack.append(path)
            for _, target, _ in sources[path].includes:
                yield from visit(target)
            stack.pop()
            done.add(path)

    for path in sources:
        yield from visit(path)


def check_listed(root, source):
    """Every source is named in the CMakeLists.txt of its folder or of one above it."""
    folder = pathlib.PurePosixPath(source.path)
    for parent in folder.parents:
        lists = root / parent / "CMakeLists.txt"
        name = re.escape(str(folder.relative_to(parent)))
        if lists.exists() and re.search(rf"(?<![\w/.-]){name}(?![\w.-])", lists.read_text()):
            return
    yield 1, "no CMakeLists.txt builds this file"


def closure(path, sources, seen):
    if path in sources and path not in seen:
        seen.add(path)
        for _, target, _ in sources[path].includes:
            closure(target, sources, seen)
            closure(EMULATOR_INCLUDE + target, sources, seen)
    return seen


def check_headers(root, sources, compiler, include_dirs, cache_path):
    """Compiles each header alone. A header that compiled is not tried again until something that it includes changes.

    Those that reach CUDA's headers are left out where no toolkit is among the folders."""
    cache = set(json.loads(cache_path.read_text())) if cache_path and cache_path.exists() else set()
    command = [*compiler.split(), "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", str(root)]
    command += [part for folder in include_dirs for part in ("-I", folder)]

    def fingerprint(path):
        digest = hashlib.sha256(" ".join(command).encode())
        for used in sorted(closure(path, sources, set())):
            digest.update(f"{used}\0{sources[used].text}\0".encode())
        return digest.hexdigest()

    def compile_alone(path):
        unit = f'#include "{path}"\n'
        done = subprocess.run([*command, "-"], input=unit, capture_output=True, text=True, cwd=root)
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        return path, "" if done.returncode == 0 else f"does not compile alone: {first}"

    has_cuda = any((pathlib.Path(folder) / "cuda_runtime.h").exists() for folder in include_dirs)

    def can_compile(path):
        used = {target for header in closure(path, sources, set()) for _, target, _ in sources[header].includes}
        return has_cuda or not any(re.match(CUDA, target) for target in used)

    marks = {path: fingerprint(path) for path in sources if path.endswith(".h") and can_compile(path)}
    stale = [path for path, mark in marks.items() if mark not in cache]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [(path, message) for path, message in pool.map(compile_alone, stale) if message]
    if cache_path:
        broken = {path for path, _ in failures}
        cache_path.write_text(json.dumps(sorted(m for p, m in marks.items() if p not in broken)))
    for path, message in failures:
        yield path, 1, message


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--compiler", default="c++", help="what compiles headers alone; empty leaves that out")
    parser.add_argument("--include", action="append", default=[], help="folder of generated headers")
    parser.add_argument("--cache", type=pathlib.Path, help="file that remembers the headers that compiled")
    arguments = parser.parse_args()
    root = arguments.root.resolve()

    paths = sorted(p.relative_to(root).as_posix() for layer in LAYERS for p in (root / layer).rglob("*")
                   if p.suffix in SUFFIXES)
    sources = {path: Source(root, path) for path in paths}
    findings = list(check_tree(sources))
    for source in sources.values():
        checks = [check_includes(source), check_text(source), check_shape(source)]
        if not source.path.endswith(".h"):
            checks.append(check_listed(root, source))
        findings += [(source.path, line, message) for check in checks for line, message in check]
    if arguments.compiler:
        findings += check_headers(root, sources, arguments.compiler, arguments.include, arguments.cache)
    for path, line, message in sorted(set(findings)):
        print(f"{path}:{line}: {message}")
    print(f"tidy: {len(sources)} files, {len(set(findings))} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
