#!/usr/bin/env python3
"""Checks and measures the CUDA backend on the GPU of this machine: `tools/gpu_check.sh`, which builds first.

Steps, each with a time limit of its own: the conformance tables and the engine's tests on the device, compute-sanitizer over
small shapes, the benches of kernels and copies, and the engine on two models. A step that fails or takes too long does not
stop those behind it, and what it has started ends with it. At the end, also one that SIGTERM brings, there is one table, and
everything in JSON.

The exit code is 1 when a step failed, 2 when all went well but a figure is short of its goal, else 0. On the emulator
(--emulated) everything is the smallest there is, figures mean nothing, and goals do not count.

Needs Python's standard library, a driver, CUDA's runtime libraries, and for two steps compute-sanitizer.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import gpu_check_libraries
from gpu_check_figures import Figures

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS_MAX = 480
SKIPPED = 77  # of a test that found no GPU
MEMORY_MIN = 20e9  # bytes that are free
TAIL_LINES = 12
KILLED_SECONDS_MAX = 10  # in which what was killed ends, unless the driver holds it

REAL_MODEL = ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
# Random weights in the shapes of SmolLM2 135M and Llama 3 8B, and a model for the emulator.
MODELS = {
    "135M": {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "ffn": 1536, "vocab": 49152,
             "context_length": 8192, "type": "Q4_1", "embedding_type": "Q8_0", "tied": 1, "rope_base": 100000},
    "8B": {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256,
           "context_length": 40960, "type": "Q4_0", "embedding_type": "Q4_0", "tied": 0, "rope_base": 500000},
    "tiny": {"type": "Q4_0", "embedding_type": "Q4_0"},
}
# What takes the sanitizer's time: every kernel with few shapes.
SANITIZED = {"memcheck": "*CudaFragments*:*CudaLaunchers*:*CudaRows*:*CudaRope*:*CudaMatMul.Outputs*:*CudaDenseMatMul*:"
                         "*CudaAttention.NothingElse*:*CudaAttention.RowsAreBitEqual*",
             "racecheck": "*CudaFragments*:*CudaLaunchers.Block*:*CudaRows.RmsNorm*:*CudaMatMul.Outputs*:"
                          "*CudaAttention.NothingElse*:*CudaAttention.HugeScores*"}


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    command: list
    seconds_max: int
    needs: str = ""  # a program that may be missing, which fails the step with its name


class Programs:
    """Where the programs are, for a device or on the emulator."""

    def __init__(self, build, emulated):
        self.tests = build / "tests"
        self.emulated = emulated

    def test(self, name):
        folder, ending = ("cuda_emu", "_test") if self.emulated else ("on_device", "_on_device")
        return self.tests / folder / f"{name}{ending}"

    def bench(self, name):
        return self.tests / "cuda_emu" / f"{name}_emulated" if self.emulated else self.tests / "on_device" / name

    def model_tool(self):
        return self.tests / "tiny_model_tool"


def write_model(programs, name, to):
    values = [f"{key}={value}" for key, value in MODELS[name].items()]
    return Step(f"model {name}", [programs.model_tool(), to, "random_codes=1", *values], 90)


def engine_steps(programs, model, title, chunk, cases, seconds_max):
    for mode in ("exact", "fast"):
        yield Step(f"engine {title} {mode}", [programs.bench("cuda_engine_bench"), model, "--compute", mode,
                                              "--chunk", chunk, *cases], seconds_max)


def model_folder(out):
    """Memory, where there is plenty of it: 5 GB take a disk long."""
    memory = pathlib.Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_MIN else out


def device_steps(programs, models, blocks):
    """The steps of a check on a GPU, in the order of their worth."""
    conformance = programs.test("cuda_conformance")
    yield Step("device", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem",
                          "--format=csv,noheader"], 20, needs="nvidia-smi")
    yield Step("conformance", [conformance], 90)
    yield Step("equivalence", [programs.test("cuda_engine")], 60)
    yield Step("kernels", [programs.bench("cuda_bench")], 90)
    small, large = models / "135M.gguf", models / "8B.gguf"
    if REAL_MODEL.is_file():
        small = REAL_MODEL
    else:
        yield write_model(programs, "135M", small)
    yield from engine_steps(programs, small, "135M", 2048,
                            ["prefill:512", "prefill:4096", "decode:64:1", "decode:4096:1", "decode:128:8"], 40)
    yield Step("step 135M", [programs.bench("cuda_step_bench"), small], 20)
    yield write_model(programs, "8B", large)
    yield from engine_steps(programs, large, "8B", 2048,
                            ["prefill:512", "prefill:8192", "decode:128:1", "decode:8192:1", "decode:1024:16"], 75)
    yield Step("step 8B", [programs.bench("cuda_step_bench"), large], 45)
    yield Step("restores 8B", [programs.bench("cuda_restore_bench"), large, blocks], 90)
    for tool, tests in SANITIZED.items():
        yield Step(tool, ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", conformance,
                          f"--gtest_filter={tests}"], 75, needs="compute-sanitizer")


def emulated_steps(programs, models, blocks):
    """The same kinds of steps, each as short as can be; the emulator's own checks are always on."""
    conformance = programs.test("cuda_conformance")
    yield Step("conformance", [conformance, "--gtest_filter=*CudaFragments*/forward_late"], 300)
    yield Step("equivalence", [programs.test("cuda_engine"), "--gtest_filter=*Decodes*"], 300)
    yield Step("kernels", [programs.bench("cuda_bench")], 300)
    model = models / "tiny.gguf"
    yield write_model(programs, "tiny", model)
    yield from engine_steps(programs, model, "tiny", 32, ["prefill:40", "decode:20:2:2"], 300)
    yield Step("step tiny", [programs.bench("cuda_step_bench"), model, "--context", 20, "--steps", 2], 300)
    yield Step("restores tiny", [programs.bench("cuda_restore_bench"), model, blocks, "--context", 128,
                                 "--turns", 1], 300)


@contextlib.contextmanager
def process_group(command, output, environment):
    """A program; behind it nothing is left of what it has started, so that nothing else uses the GPU in the next step."""
    # Not subprocess.run: it would wait for good for one that the driver does not let go.
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                               start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_SECONDS_MAX)


def run(step, logs, seconds_left, environment):
    """How it went: {"name", "status": "ok" or what is wrong, "seconds", "output"}."""
    result = {"name": step.name, "command": " ".join(map(str, step.command)), "seconds": 0.0, "output": ""}
    if step.needs and not shutil.which(step.needs, path=environment["PATH"]):
        return result | {"status": f"{step.needs} is not there"}
    limit = min(step.seconds_max, seconds_left)
    if limit < 1:
        return result | {"status": "no time was left"}
    log = logs / f"{step.name.replace(' ', '-')}.log"
    begin = time.monotonic()
    try:
        with log.open("w") as output, process_group(list(map(str, step.command)), output, environment) as process:
            code = process.wait(limit)
        status = {0: "ok", SKIPPED: "there is no GPU"}.get(code, f"failed with {code}")
    except subprocess.TimeoutExpired:
        status = f"not done in {limit:.0f} s"
    except OSError as error:
        status = f"{error.strerror}: {step.command[0]}"
    output = log.read_text(errors="replace") if log.exists() else ""
    return result | {"status": status, "seconds": time.monotonic() - begin, "output": output}


def describe(steps):
    lines = [f"{'step':<18} {'seconds':>8}  how it went"]
    for step in steps:
        lines.append(f"{step['name']:<18} {step['seconds']:>8.1f}  {step['status']}")
        if step["status"] != "ok":
            lines += [f"    {line[:160]}" for line in step["output"].splitlines()[-TAIL_LINES:]]
        elif step["name"] == "device":
            lines.append("    " + step["output"].strip())
    return "\n".join(lines)


class Report:
    """What there is so far. The file is a whole one whenever somebody looks, and replaced behind each step."""

    def __init__(self, path, emulated):
        self.path = path
        self.emulated = emulated
        self.begin = time.monotonic()
        self.figures = Figures(judged=not emulated)
        self.done = []

    def seconds(self):
        return time.monotonic() - self.begin

    def add(self, result):
        self.done.append(result)
        try:
            self.figures.read(result["name"], result["output"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            result["status"] = f"its figures cannot be read: {error!r}"
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        report = {"date": date, "emulated": self.emulated, "seconds": self.seconds(), "steps": self.done,
                  "figures": self.figures.all}
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(report, indent=1) + "\n")
        fresh.replace(self.path)

    def failed(self):
        return [step["name"] for step in self.done if step["status"] != "ok"]

    def show(self):
        failed, short = self.failed(), self.figures.short()
        print(describe(self.done) + "\n\n" + self.figures.table())
        print(f"\n{len(self.done) - len(failed)} of {len(self.done)} steps went well"
              + (f"; not: {', '.join(failed)}" if failed else "")
              + f". {len(short)} figures are short of their goals. {self.seconds():.0f} s; all of it: {self.path}", flush=True)


def check(steps, logs, emulated, seconds_max, environment, report_path):
    """Runs them; returns the exit code."""
    report = Report(report_path, emulated)
    try:
        for step in steps:
            print(f"{step.name} ...", end="", file=sys.stderr, flush=True)
            result = run(step, logs, seconds_max - report.seconds(), environment)
            report.add(result)
            print(f" {result['status']}, {result['seconds']:.0f} s", file=sys.stderr, flush=True)
    finally:
        report.show()
    return 1 if report.failed() else 2 if report.figures.short() else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="the folder of the programs")
    parser.add_argument("--emulated", action="store_true", help="on the emulator, to see that the script works")
    parser.add_argument("--only", metavar="STEP,...", help="steps by the beginnings of their names")
    parser.add_argument("--seconds", type=int, default=SECONDS_MAX, help="for everything (default %(default)s)")
    parser.add_argument("--begun", type=int, metavar="TIME", help="when that began, in seconds of the epoch (default: now)")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the report and the logs (default BUILD/gpu_check)")
    parser.add_argument("--models", type=pathlib.Path, help="folder for models of 5 GB in all, which are deleted "
                        "(default: /dev/shm where it has room, else --out)")
    parser.add_argument("--pack", type=pathlib.Path, metavar="FOLDER",
                        help="instead of checking, gather the programs and the libraries they need, for another machine")
    options = parser.parse_args()
    build = options.build.resolve()
    programs = Programs(build, options.emulated)
    if options.pack:
        return gpu_check_libraries.pack(build, options.pack.resolve())
    seconds = options.seconds - (max(0, int(time.time()) - options.begun) if options.begun else 0)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    out = (options.out or build / "gpu_check").resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.models or model_folder(out)) as models, \
            tempfile.TemporaryDirectory(dir=out) as blocks:
        make = emulated_steps if options.emulated else device_steps
        steps = list(make(programs, pathlib.Path(models), pathlib.Path(blocks) / "blocks"))
        if options.only:
            steps = [step for step in steps if step.name.startswith(tuple(options.only.split(",")))]
        if not steps:
            parser.error("--only names no step")
        return check(steps, out, options.emulated, seconds, gpu_check_libraries.environment(build),
                     out / "report.json")


if __name__ == "__main__":
    sys.exit(main())
