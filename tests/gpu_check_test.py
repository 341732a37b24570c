"""tools/gpu_check.py: on the emulator from end to end, and the steps of a GPU with programs that only print.

    gpu_check_test.py BUILD
"""

import contextlib
import io
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import gpu_check  # noqa: E402
import gpu_check_libraries  # noqa: E402  the folder of tools is on the path now
from gpu_check_figures import Figures  # noqa: E402

BUILD = None  # the first argument

KERNELS = r"""
cat <<'END'
{"name": "copies of device memory, reads and writes", "value": 4000.0, "unit": "GB/s"}
{"name": "cuBLAS, float16, 8192 cubed", "value": 700.0, "unit": "TFLOP/s"}
{"name": "attention, 8 rows at 32768", "value": 3400.0, "unit": "GB/s", "ratio": 0.85, "of": "copies", "at_least": 0.8}
END
"""
ENGINE = r"""
cat <<'END'
{"weight_bytes": 4000000000, "kv_bytes_per_token": 131072, "flop_per_token": 14000000000, "attention_flop_per_position": 524288}
{"case": "prefill", "context": 512, "streams": 1, "compute": "exact", "tokens_per_s": 10000.0}
{"case": "decode", "context": 128, "streams": 1, "compute": "exact", "tokens_per_s": 200.0}
END
"""
STEP = """echo '{"name": "a step beyond its kernels at 128", "value": 45.0, "unit": "us", "at_most": 30}'"""
RESTORES = """echo '{"name": "cairn over its best rival: all on disk", "value": 1.01, "unit": "x", "at_most": 1.1}'"""


class FakeBuild:
    """A folder of programs that do what they are told, and a PATH with the machine's."""

    def __init__(self, folder, **programs):
        self.folder = pathlib.Path(folder)
        self.path = self.folder / "path"
        usual = {"tests/on_device/cuda_conformance_on_device": "", "tests/on_device/cuda_engine_on_device": "",
                 "tests/on_device/cuda_bench": KERNELS, "tests/on_device/cuda_engine_bench": ENGINE,
                 "tests/on_device/cuda_step_bench": STEP, "tests/on_device/cuda_restore_bench": RESTORES, "tests/tiny_model_tool": 'echo model >"$1"',
                 "path/nvidia-smi": "echo GPU", "path/compute-sanitizer": ""}
        for name, script in (usual | {f"tests/on_device/{name}": text for name, text in programs.items()}).items():
            program = self.folder / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)

    def start(self, *flags):
        return subprocess.Popen([sys.executable, ROOT / "tools/gpu_check.py", "--build", self.folder, *flags],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={"PATH": f"{self.path}:/usr/bin:/bin"})

    def end(self, process):
        """(exit code, what it printed, the report)"""
        output, _ = process.communicate(timeout=300)
        report = self.folder / "gpu_check/report.json"
        return process.returncode, output, json.loads(report.read_text()) if report.exists() else None

    def check(self, *flags):
        return self.end(self.start(*flags))


class GpuCheckTest(unittest.TestCase):
    def with_build(self, check, *flags, **programs):
        with tempfile.TemporaryDirectory() as folder:
            check(*FakeBuild(folder, **programs).check(*flags))

    def test_everything_is_measured_and_one_figure_is_short(self):
        def check(code, output, report):
            self.assertEqual(code, 2, output)
            self.assertEqual([step["status"] for step in report["steps"]], ["ok"] * len(report["steps"]))
            names = [step["name"] for step in report["steps"]]
            for name in ("conformance", "memcheck", "racecheck", "kernels", "engine 8B fast", "step 8B", "restores 8B"):
                self.assertIn(name, names)
            figures = {(figure["step"], figure["name"]): figure for figure in report["figures"]}
            decode = figures["engine 8B exact", "decode, 1 x at 128"]
            self.assertAlmostEqual(decode["ratio"], 200 * (4e9 + 144 * 131072) / 4e12)
            prefill = figures["engine 8B exact", "prefill, 512 tokens"]
            self.assertAlmostEqual(prefill["ratio"], 1e4 * (14e9 + 524288 * 256) / 7e14)
            self.assertEqual(figures["engine 8B", "exact / fast, prefill, 512 tokens"]["value"], 1)
            self.assertTrue(figures["kernels", "attention, 8 rows at 32768"]["met"])
            self.assertFalse(figures["step 8B", "a step beyond its kernels at 128"]["met"])
            self.assertRegex(output, r"a step beyond its kernels at 128 +45 us +<= 30 us +short")
        self.with_build(check)

    def test_a_step_that_fails_stops_no_other(self):
        def check(code, output, report):
            self.assertEqual(code, 1)
            status = {step["name"]: step["status"] for step in report["steps"]}
            self.assertEqual(status["conformance"], "failed with 3")
            self.assertEqual(status["equivalence"], "there is no GPU")
            self.assertEqual(status["kernels"], "ok")
            self.assertIn("    what went wrong", output)
        self.with_build(check, cuda_conformance_on_device="echo what went wrong; exit 3", cuda_engine_on_device="exit 77")

    def test_a_step_ends_when_the_time_is_used_up(self):
        def check(code, output, report):
            self.assertEqual(code, 1)
            status = {step["name"]: step["status"] for step in report["steps"]}
            self.assertEqual(status["kernels"], "not done in 2 s")
            self.assertEqual(status["step 8B"], "no time was left")
            self.assertEqual(report["figures"][0]["value"], 1)  # what was printed before counts
        begin = time.monotonic()
        self.with_build(check, "--seconds", "2", "--only", "kernels,step", cuda_bench="""
            echo '{"name": "first", "value": 1, "unit": ""}'
            exec sleep 600""")
        self.assertLess(time.monotonic() - begin, 120)

    def expect_gone(self, pid_file):
        """The process, which may be somebody else's to reap."""
        state = pathlib.Path(f"/proc/{pid_file.read_text().strip()}/stat")
        for _ in range(100):
            if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
            time.sleep(0.1)
        self.fail("a program that a step has started goes on")

    def test_what_a_step_has_started_ends_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            child = pathlib.Path(folder) / "child"
            build = FakeBuild(folder, cuda_bench=f"sleep 600 & echo $! >{child}; wait")
            code, output, _ = build.check("--seconds", "2", "--only", "kernels")
            self.assertEqual(code, 1)
            self.assertIn("not done in 2 s", output)
            self.expect_gone(child)

    def test_one_that_is_stopped_shows_what_there_is(self):
        with tempfile.TemporaryDirectory() as folder:
            child = pathlib.Path(folder) / "child"
            build = FakeBuild(folder, cuda_step_bench=f"echo $$ >{child}; exec sleep 600")
            process = build.start("--only", "kernels,step 8B")
            while not child.exists() or not child.read_text().endswith("\n"):
                time.sleep(0.05)
            process.terminate()
            code, output, report = build.end(process)
            self.assertEqual(code, 128 + signal.SIGTERM)
            self.expect_gone(child)
            self.assertRegex(output, r"attention, 8 rows at 32768 +3,400 GB/s")
            self.assertEqual([step["name"] for step in report["steps"]], ["kernels"])

    def test_the_time_that_building_took_counts(self):
        def check(code, output, report):
            self.assertEqual([step["status"] for step in report["steps"]], ["no time was left"])
        self.with_build(check, "--begun", str(int(time.time()) - 500), "--only", "kernels")

    def test_figures_that_cannot_be_read_stop_nothing(self):
        def check(code, output, report):
            self.assertEqual(code, 1)
            self.assertIn("its figures cannot be read: KeyError('context')", output)
            self.assertEqual(report["steps"][-1]["status"], "ok")
        self.with_build(check, "--only", "kernels,step 8B", cuda_bench="echo '{\"case\": \"decode\"}'")

    def test_programs_that_are_missing_are_named(self):
        self.assertEqual(gpu_check.run(gpu_check.Step("x", ["x"], 1, needs="no-such-program"), None, 10, {"PATH": "/bin"})["status"],
                         "no-such-program is not there")
        with tempfile.TemporaryDirectory() as folder:
            build = FakeBuild(folder)
            (build.folder / "tests/on_device/cuda_bench").unlink()
            code, output, _ = build.check("--only", "memcheck,kernels")
            self.assertEqual(code, 1)
            self.assertIn("No such file or directory: ", output)
            self.assertIn("--only names no step", build.check("--only", "nothing")[1])

    def test_figures_without_peaks_have_no_ratio(self):
        figures = Figures(judged=True)
        figures.read("engine x exact", ENGINE)
        self.assertEqual([figure["ratio"] for figure in figures.all], [None, None])
        figures.read("kernels", '{"name": "half of a line')
        self.assertEqual(len(figures.all), 2)

    def test_where_there_is_no_gpu_the_real_programs_say_so(self):
        if not (BUILD / "tests/on_device/cuda_bench").exists():
            self.skipTest("this build has no nvcc")
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, ROOT / "tools/gpu_check.py", "--build", BUILD, "--out", folder, "--only",
                                   "conformance"], capture_output=True, text=True, timeout=300)
            report = json.loads((pathlib.Path(folder) / "report.json").read_text())
            if report["steps"][0]["status"] == "ok":
                self.skipTest("there is a GPU")
            self.assertEqual(done.returncode, 1)
            self.assertIn("there is no GPU", done.stdout)

    def test_what_is_packed_runs_elsewhere(self):
        if not (BUILD / "tests/on_device/cuda_bench").exists():
            self.skipTest("this build has no nvcc")
        with tempfile.TemporaryDirectory() as folder:
            packed = pathlib.Path(folder) / "packed"
            with contextlib.redirect_stdout(io.StringIO()):
                gpu_check_libraries.pack(BUILD, packed)
            for program in gpu_check_libraries.PROGRAMS:
                self.assertTrue((packed / program).exists(), program)
            self.assertTrue(list((packed / "lib").glob("libspdlog.so.*")))
            self.assertFalse(list((packed / "lib").glob("libcublas*")) + list((packed / "lib").glob("libc.so*")))
            model = packed / "model.gguf"
            subprocess.run([packed / "tests/tiny_model_tool", model], check=True,
                           env=gpu_check_libraries.environment(packed))
            self.assertTrue(model.exists())

    def test_the_whole_of_it_on_the_emulator(self):
        if not (BUILD / "tests/cuda_emu/cuda_bench_emulated").exists():
            self.skipTest("this build has no emulator")
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([ROOT / "tools/gpu_check.sh", "--no-build", "--build", BUILD, "--emulated", "--out", folder,
                                   "--seconds", "850"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            report = json.loads((pathlib.Path(folder) / "report.json").read_text())
            self.assertEqual({step["status"] for step in report["steps"]}, {"ok"})
            steps = {figure["step"] for figure in report["figures"]}
            self.assertEqual(steps, {"kernels", "engine tiny exact", "engine tiny fast", "engine tiny", "step tiny",
                                     "restores tiny"})
            self.assertTrue(all(figure["value"] > 0 or figure["at_most"] for figure in report["figures"]))
            self.assertFalse(list(pathlib.Path(folder).rglob("*.gguf")))


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
