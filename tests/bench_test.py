"""tools/bench.py without an engine: commands, what the engines print, medians, ratios, tables, and who sits out."""

import contextlib
import io
import json
import pathlib
import stat
import struct
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

import bench
import bench_layouts
import bench_predictions
import bench_report
import bench_restore
import bench_returns
import restore_plot
from bench_contestants import ROWS, BenchError, Cairn, LlamaCpp, llama_cpp, run

BY_NAME = {row.name: row for row in ROWS}

LLAMA_BENCH = (
    '{"build_commit": "0c1e570", "cpu_info": "A", "model_type": "llama 256M Q4_1", "n_threads": 2, "flash_attn": %d, '
    '"n_prompt": %d, "n_gen": %d, "n_depth": %d, "avg_ns": 4399382179, "avg_ts": %f, "samples_ts": [ 1 ]}\n')
BATCHED_BENCH = (
    'some log line\n{"n_kv_max": 2560, "flash_attn": %d, "n_threads": 2, "pp": %d, "tg": %d, "pl": %d, "n_kv": 1280, '
    '"t_pp": 5.82, "speed_pp": 175.9, "t_tg": 1.5, "speed_tg": %f, "t": 7.3, "speed": 174.0}\n\n')
ENGINE_BENCH = (
    '{"weight_bytes":96436224,"kv_bytes_per_token":23040,"flop_per_token":212336640,'
    '"attention_flop_per_position":69120}\n'
    '{"case":"decode","context":64,"streams":1,"compute":"fast","tokens_per_s":300.00}\n'
    '{"case":"cached","context":6144,"streams":1,"compute":"fast","ms":14.25}\n')
KERNEL_BENCH = """\
2 threads: FMA peak 204 GFLOP/s, stream 30.5 GB/s
GFLOP/s (/ FMA peak) at M =            1            8          128   GB/s at M = 1 (/ stream)
Q4_1  1536 x 576   fast      106 (0.52)    375 (1.84)    432 (2.12)    33.0 (1.08)
F32   1536 x 576   exact      15 (0.07)    112 (0.55)    194 (0.95)    28.1 (0.92)
"""
ATTENTION_BENCH = """\
2 threads: FMA peak 204.0 GFLOP/s, read peak 30.0 GB/s
decode   batch 1 rows   1 at 7999:   10.400 ms    52.1 GFLOP/s   26 %   18.0 GB/s   60 %
prefill  batch 1 rows 512 at    0:   12.000 ms   150.0 GFLOP/s   74 %    1.0 GB/s    3 %
"""


def trace(rows, steps):
    """Steps that begin each 10 µs, of which the model takes 9."""
    return [event for i in range(steps) for event in (
        {"name": "step", "ts": 10.0 * i, "dur": 9.5, "args": {"rows": rows}},
        {"name": "plan", "ts": 10.0 * i, "dur": 0.1, "args": {}},
        {"name": "forward", "ts": 10.0 * i + 0.1, "dur": 9.0, "args": {}})]


def cairn(mode="fast"):
    return Cairn(pathlib.Path("build"), pathlib.Path("m.gguf"), mode, 2)


def llama(quantisation="Q4_1", flash_attention=0):
    return LlamaCpp(pathlib.Path("bin"), pathlib.Path("m.gguf"), quantisation, flash_attention, 2)


def words(command):
    return " ".join(map(str, command))


class Contestants(unittest.TestCase):
    def test_commands(self):
        self.assertEqual(words(cairn().command(BY_NAME["prefill-512"])),
                         "build/tests/engine_bench m.gguf --threads 2 --compute fast --repeat 1 prefill:512")
        self.assertTrue(words(cairn("exact").command(BY_NAME["decode-8x128"])).endswith("--repeat 1 decode:128:8"))
        self.assertTrue(words(cairn().command(BY_NAME["cached-6144"])).endswith("cached:6144"))
        self.assertEqual(words(llama().command(BY_NAME["prefill-512"])),
                         "bin/llama-bench -m m.gguf -t 2 -fa 0 -r 1 -o jsonl -p 512 -n 0")
        self.assertEqual(words(llama("Q4_0", 1).command(BY_NAME["decode-7800"])),
                         "bin/llama-bench -m m.gguf -t 2 -fa 1 -r 1 -o jsonl -p 0 -n 32 -d 7800 --no-warmup")
        self.assertEqual(words(llama("Q4_0", 1).command(BY_NAME["decode-8x128"])),
                         "bin/llama-batched-bench -m m.gguf -t 2 -tb 2 -npp 128 -ntg 32 -npl 8 -c 2560 -fa on "
                         "--output-format jsonl")

    def test_reads_what_the_engines_print(self):
        self.assertEqual(cairn().read(BY_NAME["decode-64"], ENGINE_BENCH.rpartition('{"case":"cached"')[0]), 300.0)
        self.assertEqual(cairn().read(BY_NAME["cached-6144"], ENGINE_BENCH), 14.25)
        self.assertEqual(cairn().read_costs(ENGINE_BENCH)["kv_bytes_per_token"], 23040)
        self.assertEqual(llama().read(BY_NAME["prefill-512"], LLAMA_BENCH % (0, 512, 0, 0, 244.5)), 244.5)
        self.assertEqual(llama().read(BY_NAME["decode-4096"], LLAMA_BENCH % (0, 0, 32, 4096, 40.5)), 40.5)
        self.assertEqual(llama("Q4_1", 1).read(BY_NAME["decode-8x128"], BATCHED_BENCH % (1, 128, 32, 8, 170.5)), 170.5)

    def test_a_figure_of_another_case_is_refused(self):
        for output in (LLAMA_BENCH % (0, 512, 0, 0, 1), LLAMA_BENCH % (1, 2048, 0, 0, 1),
                       LLAMA_BENCH % (0, 2048, 32, 0, 1)):
            with self.assertRaises(BenchError):
                llama().read(BY_NAME["prefill-2048"], output)
        with self.assertRaises(BenchError):
            llama().read(BY_NAME["decode-8x128"], BATCHED_BENCH % (0, 128, 32, 4, 170.5))

    def test_missing_llama_cpp_says_what_to_do(self):
        with tempfile.TemporaryDirectory() as empty, self.assertRaisesRegex(BenchError, r"\./cairn bench --setup"):
            llama_cpp(pathlib.Path(empty), pathlib.Path(empty), 2)

    def test_a_program_that_fails_or_is_not_there(self):
        with self.assertRaisesRegex(BenchError, "failed with 3:\nout of cheese"):
            run(["sh", "-c", "echo out of cheese >&2; exit 3"])
        with self.assertRaisesRegex(BenchError, "/nonexistent"):
            run(["/nonexistent"])


class Restore(unittest.TestCase):
    LINEAR = [eighth / 8 for eighth in range(1, 9)]  # of a second

    @staticmethod
    def point(bandwidth, **seconds):
        """Each policy with samples around what is given; cairn loads a quarter."""
        return {"bandwidth": bandwidth,
                "policies": {policy: {"samples": [time + 7, time, 0], "loaded": [0.25 * (policy == "cairn")] * 3}
                             for policy, time in seconds.items()}}

    def report(self):
        even = self.point(20, load_all=4.0, recompute_all=4.0, greedy=4.0, threshold=5.0, cake=2.0, cairn=2.5)
        fast = self.point(600, load_all=0.1, recompute_all=4.0, greedy=0.1, threshold=0.1, cake=0.2, cairn=0.101)
        return bench_restore.summarize(6144, [even, fast], [[2 * time for time in self.LINEAR], self.LINEAR])

    def test_best_split(self):
        self.assertAlmostEqual(bench_restore.best_split(1.0, self.LINEAR), 0.5)
        self.assertAlmostEqual(bench_restore.best_split(3.0, self.LINEAR), 0.75)  # three quarters are computed
        self.assertAlmostEqual(bench_restore.best_split(0.01, self.LINEAR), 0.01 / 1.01)
        self.assertAlmostEqual(bench_restore.best_split(100.0, self.LINEAR), 1 / 1.01)
        # The later, the dearer: x^2 = 1 - x, but for the straight lines between eighths.
        squares = [time * time for time in self.LINEAR]
        self.assertAlmostEqual(bench_restore.best_split(1.0, squares), 0.382, 2)

    def test_summary(self):
        report = self.report()
        even, fast = report["points"]
        self.assertEqual(report["beginnings"], [1.5 * time for time in self.LINEAR])
        self.assertEqual((even["medians"]["cairn"], even["loaded"]), (2.5, 0.25))
        self.assertEqual((even["best_rival"], even["hindsight"]), ("cake", 1.25))
        self.assertEqual((even["gain"], even["split"], even["gain_bound"]), (1.6, 2.0, 2.0))
        self.assertEqual(fast["best_rival"], "greedy")  # the first by name of those that are equal
        self.assertAlmostEqual(fast["hindsight"], 1.01)
        self.assertAlmostEqual(fast["gain_bound"], 1.025)
        json.dumps(report)

    def test_table(self):
        lines = bench_restore.table(self.report()).splitlines()
        self.assertEqual([cell.strip() for cell in lines[2].split("|")[1:-1]],
                         ["20 MB/s", "4.000", "4.000", "4.000", "5.000", "2.000", "2.500", "25%", "2.000", "1.25 (cake)",
                          "1.60×", "2.00×"])
        self.assertIn("median 1.13 (goal <= 1.05, short), worst 1.25", lines[-1])
        self.assertIn("at 20 MB/s: 1.60× faster than the better pure plan, 80% of the 2.00×", lines[-1])
        self.assertTrue(lines[-1].endswith("(goal >= 85%, short)."))

    def test_plot(self):
        [axes] = restore_plot.figure(self.report()).axes
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
        self.assertEqual(len(lines), 7)
        self.assertEqual(list(lines)[-1], "cairn")  # above all others
        self.assertEqual(lines["cairn"], [[20, 2.5], [600, 0.101]])
        self.assertEqual(lines["best split in hindsight"][0], [20, 2])
        self.assertEqual((axes.get_xscale(), axes.get_yscale()), ("log", "log"))
        self.assertEqual(axes.get_title(), "A session of 6,144 tokens comes back from disk")

    def test_plot_of_one_bandwidth(self):
        report = self.report()
        del report["points"][1]
        left, right = restore_plot.figure(report).axes[0].get_xlim()
        self.assertTrue(left < 20 < right)

    def test_plot_is_what_its_name_ends_in(self):
        with tempfile.TemporaryDirectory() as folder:
            png, svg = [pathlib.Path(folder) / f"out{suffix}" for suffix in restore_plot.SUFFIXES]
            for path in (png, svg):
                restore_plot.draw(self.report(), path)
            data = png.read_bytes()
            self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
            self.assertEqual(struct.unpack(">II", data[16:24]), (1200, 720))
            self.assertTrue(xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg"))


class Layouts(unittest.TestCase):
    @staticmethod
    def samples(**seconds):
        """Cuts take 4 s unless they are given, as cut_3=2.0."""
        policies = {policy: 4.0 for policy in bench_layouts.POLICIES}
        policies |= {name.replace("cut_", "cut ") + "/8" if name.startswith("cut_") else name: time
                     for name, time in seconds.items()}
        return {policy: [{"took": time + shift, "predicted": 0.95 * time, "actual": time} for shift in (0.1, 0, -0.2)]
                for policy, time in policies.items()}

    def report(self):
        return bench_layouts.summarize(3072, [
            {"bandwidth": 20, "layout": "a", "samples": self.samples(cut_3=2.0, cake=3.0, cairn=1.0)},
            {"bandwidth": 60, "layout": "b", "samples": self.samples(cut_0=1.0, cairn=1.25)}])

    def test_layouts(self):
        self.assertEqual(bench_layouts.merged(bench_layouts.LAYOUTS["middle third disk, else host"](9)),
                         [(0, 3, "host"), (3, 6, "disk"), (6, 9, "host")])
        self.assertEqual(bench_layouts.merged([("host", 1), ("host", 2), ("disk", 2), ("host", 4)]), [(0, 4, "host")])
        for layout in bench_layouts.LAYOUTS.values():
            place = bench_layouts.merged(layout(100))
            self.assertEqual((place[0][0], place[-1][1]), (0, 100))
            self.assertTrue(all(one[1] == next[0] and one[2] != next[2] for one, next in zip(place, place[1:])))
        scattered = bench_layouts.merged(bench_layouts.LAYOUTS["random 20 % disk, else host"](100))
        self.assertEqual(sum(end - begin for begin, end, tier in scattered if tier == "disk"), 20)

    def test_flags(self):
        self.assertEqual(bench_layouts.flags_of("cut 8/8"), ("--restore-policy", "cut", "--restore-cut", 100))
        self.assertEqual(bench_layouts.flags_of("cake"), ("--restore-policy", "cake"))

    def test_summary(self):
        better, worse = self.report()["points"]
        self.assertEqual((better["best_cut"], better["gain"], better["hindsight"]), ("cut 3/8", 2.0, 0.5))
        self.assertEqual((worse["best_cut"], worse["gain"], worse["hindsight"]), ("cut 0/8", 0.8, 1.25))
        self.assertEqual(better["predicted"], [0.95] * 3)
        json.dumps(self.report())

    def test_table(self):
        lines = bench_layouts.table(self.report()).splitlines()
        self.assertEqual([cell.strip() for cell in lines[2].split("|")[1:-1]],
                         ["20 MB/s, a", "4.000", "4.000", "2.000 (3/8)", "3.000", "1.000", "2.00×", "0.95 … 0.95"])
        self.assertIn("median 0.88 (goal <= 1.05), 95 % at most 1.25 (goal <= 1.10, short)", lines[-1])
        self.assertIn("at most 2.00 (goal >= 1.3), at least 0.80 (goal >= 0.98, short)", lines[-1])
        self.assertIn("Of 6 predictions 100% are within 10% of what the restore took (goal >= 95%), 100% are, or", lines[-1])


class Predictions(unittest.TestCase):
    @staticmethod
    def point(context, bandwidth, *ratios, actual=(1.0, 1.0, 1.0)):
        return {"context": context, "bandwidth": bandwidth, "layout": "a",
                "samples": [{"took": time, "predicted": ratio * time, "actual": time} for ratio, time in zip(ratios, actual)]}

    def report(self):
        return bench_predictions.summarize([
            self.point(512, 10, 0.95, 1.05, 1.2), self.point(512, 60, 1, 1, 1), self.point(1536, 10, 1, 1, 1),
            self.point(1536, 60, 0.7, 0.7, 0.7), self.point(1536, 60, 1.3, 1, 1, actual=(1.0, 1.5, 2.0))])

    def test_within_a_tenth_or_within_what_it_took_repeated(self):
        points = self.report()["points"]
        self.assertEqual((points[0]["near"], points[0]["covered"]), ([True, True, False], [True, True, False]))
        self.assertEqual(points[3]["covered"], [False] * 3)
        self.assertEqual((points[4]["near"], points[4]["covered"]), ([False, True, True], [True] * 3))  # 1.3 of 1 .. 2
        json.dumps(self.report())

    def test_table(self):
        lines = bench_predictions.table(self.report()).splitlines()
        self.assertEqual([[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:4]],
                         [["512 tokens", "67% (1.05)", "100% (1.00)"], ["1,536 tokens", "100% (1.00)", "33% (0.85)"]])
        self.assertIn("Of 15 predictions 67% are within 10% of what the restore took (goal >= 95%, short), 73% are, or", lines[-1])
        self.assertIn("The worst: 1,536 tokens at 60 MB/s, a: 0.70", lines[-1])


class Returns(unittest.TestCase):
    def test_time_of_the_same_tokens(self):
        counts, times = [0, 4, 8, 12], [10.0, 11.0, 13.0, 16.0]
        self.assertEqual(bench_returns.seconds_between(counts, times, 4, 12), 5.0)
        self.assertEqual(bench_returns.seconds_between(counts, times, 0, 5), 3.0)

    def test_summary_and_table(self):
        turns = {policy: [{"took": [time, 3 * time], "pace": pace}] * 3
                 for policy, time, pace in (("load_all", 2.0, 0.9), ("cake", 1.5, 0.8), ("cairn", 1.0, 0.75))}
        report = bench_returns.summarize(turns)
        self.assertEqual((report["gain"], report["policies"]["cairn"]), (2.0, {"mean": 2.0, "last": 3.0, "pace": 0.75}))
        lines = bench_returns.table(report).splitlines()
        self.assertEqual([cell.strip() for cell in lines[2].split("|")[1:-1]], ["load_all", "4.000", "6.000", "90%"])
        self.assertIn("load_all ÷ cairn, means: 2.00 (goal >= 1.3); beside cairn the streams keep 75% of their rate (goal >= 80%, "
                      "short)", lines[-1])
        json.dumps(report)


class Report(unittest.TestCase):
    CONTESTANTS = [llama("Q4_1", 0), llama("Q4_1", 1), llama("Q4_0", 0), llama("Q4_0", 1), cairn(), cairn("exact")]
    SAMPLES = {
        "prefill-512": {"llama.cpp Q4_1 -fa 0": [190, 188, 186], "llama.cpp Q4_1 -fa 1": [244],
                        "llama.cpp Q4_0 -fa 0": [400], "llama.cpp Q4_0 -fa 1": [503, 500, 900],
                        "cairn fast": [1400, 1509, 1600], "cairn exact": [503, 503, 503]},
        "cached-6144": {"cairn fast": [14, 15, 16], "cairn exact": [21, 22, 23]}}

    def summaries(self):
        rows = [BY_NAME[name] for name in self.SAMPLES]
        return rows, bench_report.summarize(rows, self.CONTESTANTS, self.SAMPLES)

    def test_medians_and_the_yardstick(self):
        prefill, cached = self.summaries()[1]
        self.assertEqual(prefill["columns"]["llama.cpp Q4_1"], (244, "llama.cpp Q4_1 -fa 1"))
        self.assertEqual(prefill["columns"]["llama.cpp Q4_0"], (503, "llama.cpp Q4_0 -fa 1"))
        self.assertEqual(prefill["yardstick"], "llama.cpp Q4_0 -fa 1")
        self.assertEqual(prefill["ratios"], {"fast": 3.0, "exact": 1.0})
        self.assertEqual(bench_report.missed(prefill), ["exact"])
        self.assertIsNone(cached["yardstick"])
        self.assertEqual(bench_report.missed(cached), ["exact"])

    def test_table(self):
        lines = bench_report.comparison_table(self.summaries()[1]).splitlines()
        self.assertEqual(len({len(line) for line in lines}), 1, "columns are aligned")
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        self.assertEqual(cells[0], ["tokens/s, medians", "llama.cpp Q4_1", "llama.cpp Q4_0", "cairn fast",
                                    "cairn exact", "fast ÷ best", "exact ÷ best", "at least", ""])
        self.assertEqual(cells[2], ["prefill, 512 tokens", "244 -fa 1", "503 -fa 1", "1,509", "503", "3.00", "1.00",
                                    "2.3 / 1.3", "short: exact"])
        self.assertEqual(cells[3], ["first token, 6,144 cached", "–", "–", "15.0 ms", "22.0 ms", "–", "–", "≤ 20 ms",
                                    "short: exact"])

    def test_peaks(self):
        kernels = bench_report.read_kernel_bench(KERNEL_BENCH)
        self.assertEqual((kernels["fma_gflops"], kernels["stream_gbytes"]), (204.0, 30.5))
        self.assertEqual(kernels["products"]["F32 1536 x 576 exact"],
                         {"rows": {"1": 0.07, "8": 0.55, "128": 0.95}, "stream": 0.92})
        self.assertEqual(bench_report.read_attention_bench(ATTENTION_BENCH),
                         {"decode batch 1 rows 1 at 7999": {"fma": 0.26, "stream": 0.6},
                          "prefill batch 1 rows 512 at 0": {"fma": 0.74, "stream": 0.03}})

    def test_engine_beside_the_peaks(self):
        costs = {"weight_bytes": 90e6, "kv_bytes_per_token": 20e3, "flop_per_token": 200e6,
                 "attention_flop_per_position": 70e3}
        rows = [BY_NAME["prefill-2048"], BY_NAME["decode-8x128"]]
        summaries = [{"title": row.title, "medians": {"cairn fast": rate}} for row, rate in zip(rows, (1000, 800))]
        prefill, decode = bench_report.engine_roofline(summaries, rows, costs,
                                                       {"fma_gflops": 200, "stream_gbytes": 30})
        self.assertAlmostEqual(prefill["reached"], 1000 * (200e6 + 70e3 * 1024.5) * 1e-9)
        self.assertAlmostEqual(prefill["share"], prefill["reached"] / 200)
        self.assertAlmostEqual(decode["reached"], 100 * (90e6 + 8 * 144 * 20e3) * 1e-9)
        self.assertIn("prefill, 2,048 tokens, fast", bench_report.roofline_table([prefill, decode]))

    def test_overhead_is_of_the_steps_with_so_many_rows(self):
        events = trace(rows=8, steps=4) + trace(rows=520, steps=1) + trace(rows=1, steps=2)
        self.assertAlmostEqual(bench_report.overhead(events, 8), 0.1)
        events[2]["dur"] = 3.0  # the model's part of the first of three intervals
        self.assertAlmostEqual(bench_report.overhead(events, 8), 0.3)

    def test_line_through_decode_times(self):
        contexts = [80, 272, 1040, 2064, 4112, 7816]
        a, b, deviation = bench_report.fit_line(contexts, [3 + 0.001 * x for x in contexts])
        self.assertAlmostEqual(a, 3)
        self.assertAlmostEqual(b, 0.001)
        self.assertLess(deviation, 1e-9)
        cliff = [3 + 0.001 * x + (2 if x > 4000 else 0) for x in contexts]
        self.assertGreater(bench_report.fit_line(contexts, cliff)[2], 0.1)


class WholeRun(unittest.TestCase):
    """bench.py with scripts in the engines' places."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.calls = self.root / "calls"
        models = self.root / "cache/models"
        models.mkdir(parents=True)
        for quantisation in ("Q4_1", "Q4_0"):
            (models / f"SmolLM2-135M-Instruct.{quantisation}.gguf").touch()
        self.script("build/tests/engine_bench", 'case "$*" in *exact*) r=900;; *) r=1500;; esac\n' + """
echo '{"weight_bytes":1,"kv_bytes_per_token":1,"flop_per_token":1,"attention_flop_per_position":1}'
echo '{"case":"prefill","context":512,"streams":1,"compute":"-","tokens_per_s":'$r'}'""")
        self.script("cache/llama.cpp/bin/llama-bench", 'case "$*" in *"-fa 1"*) r=500 f=1;; *) r=300 f=0;; esac\n' + """
echo '{"flash_attn": '$f', "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": '$r'}'""")
        self.script("cache/llama.cpp/bin/llama-batched-bench", "exit 1")

    def script(self, name, body):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$0 $*" >>{self.calls}\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def bench(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = bench.main([*arguments, "--bin", str(self.root / "build"), "--cache", str(self.root / "cache")])
        return status, out.getvalue(), err.getvalue()

    def test_alternates_and_lets_the_slow_variant_sit_out(self):
        target = self.root / "bench.json"
        status, out, err = self.bench("--rows", "prefill-512", "--alternations", "3", "--json", str(target))
        self.assertEqual(status, 0, err)
        self.assertIn("500 -fa 1", out)
        self.assertIn("[3/3", err)
        [row] = json.loads(target.read_text())["rows"]
        self.assertEqual(row["ratios"], {"fast": 3.0, "exact": 1.8})
        self.assertEqual({name: len(values) for name, values in row["samples"].items()},
                         {"llama.cpp Q4_1 -fa 0": 1, "llama.cpp Q4_1 -fa 1": 3, "llama.cpp Q4_0 -fa 0": 1,
                          "llama.cpp Q4_0 -fa 1": 3, "cairn fast": 3, "cairn exact": 3})
        programs = [line.split()[0].rpartition("/")[2] for line in self.calls.read_text().splitlines()]
        self.assertEqual(programs[4:10], ["engine_bench"] * 2 + ["llama-bench"] * 2 + ["engine_bench"] * 2)

    def test_alone(self):
        status, out, _ = self.bench("--rows", "prefill-512", "--quick", "--alone")
        self.assertEqual(status, 0)
        self.assertIn("1,500", out)
        self.assertNotIn("llama", out + self.calls.read_text())

    def test_on_a_gpu_it_is_alone(self):
        self.script("build/tests/on_device/cuda_engine_bench", (self.root / "build/tests/engine_bench").read_text())
        status, out, err = self.bench("--rows", "prefill-512,roofline", "--quick", "--backend", "cuda")
        self.assertEqual(status, 0, err)
        self.assertIn("1,500", out)
        programs = {line.split()[0].rpartition("/")[2] for line in self.calls.read_text().splitlines()}
        self.assertEqual(programs, {"cuda_engine_bench"})

    def test_over_grpc(self):
        (self.root / "trace").write_text(json.dumps(trace(rows=1, steps=3) + trace(rows=8, steps=3)))
        self.script("build/service/cairnd", f"""for trace; do :; done
[ "${{trace##*.}}" = json ] && cp {self.root}/trace "$trace"
echo listening on 127.0.0.1:77
exec sleep 60""")
        self.script("build/tests/serving_bench", """echo '{"case":"served","streams":1,"tokens_per_s":1200}'""")
        status, out, err = self.bench("--rows", "grpc", "--quick")
        self.assertEqual(status, 0, err)
        cells = [[cell.strip() for cell in line.split("|")[-3:-1]] for line in out.splitlines()[4:]]
        self.assertEqual(cells, [["0.80", "10.0%"]] * 2 + [["1.33", "10.0%"]] * 2)
        self.assertIn("serving_bench 127.0.0.1:77 128 8 256", self.calls.read_text())
        self.script("build/service/cairnd", "echo no such model >&2; exit 1")
        status, out, err = self.bench("--rows", "grpc", "--quick")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("cairnd did not start: no such model", err)

    def test_durable(self):
        self.script("build/service/cairnd", """for level; do :; done
echo "$level" >"$(dirname "$0")/level"
echo listening on 127.0.0.1:77
exec sleep 60""")
        self.script("build/tests/serving_bench", f"""case $(cat {self.root}/build/service/level) in
none) rate=1000 ;; os) rate=980 ;; sync) rate=950 ;; esac
echo '{{"case":"served","streams":1,"tokens_per_s":'$rate'}}'""")
        status, out, err = self.bench("--rows", "durable", "--quick")
        self.assertEqual(status, 0, err)
        cells = [[cell.strip() for cell in line.split("|")[2:-1]] for line in out.splitlines()[4:]]
        self.assertEqual(cells, [["1,000", "980", "950", "0.98", "0.95"]] * 4)
        self.assertIn("--disk-dir", self.calls.read_text())

    def test_start(self):
        self.script("build/service/cairnd", "echo listening on 127.0.0.1:77\nexec sleep 60")
        self.script("build/tests/serving_bench", "")
        target = self.root / "bench.json"
        status, out, err = self.bench("--rows", "start", "--quick", "--json", str(target))
        self.assertEqual(status, 0, err)
        self.assertIn("--device-memory 64MiB", self.calls.read_text())
        self.assertIn("beyond both", out)
        fast = json.loads(target.read_text())["start"]["fast"]
        self.assertLess(fast["seconds"], 60)
        self.assertTrue(0 < fast["resident"] < 16 << 20, fast)  # of sleep

    def test_without_llama_cpp(self):
        (self.root / "cache/llama.cpp/bin/llama-bench").unlink()
        status, out, err = self.bench("--rows", "prefill-512")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("run ./cairn bench --setup", err)

    def test_a_failing_engine_is_named(self):
        status, out, err = self.bench("--rows", "decode-8x128")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("llama-batched-bench", err)

    def test_what_restore_may_be_asked(self):
        def complaint(*arguments):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as err:
                bench.parse_arguments(arguments)
            return err.getvalue()

        self.assertIn("between 512 and 7680", complaint("restore", "--context", "7681"))
        self.assertIn("draws .png and .svg files, not out.pdf", complaint("restore", "--plot", "out.pdf"))
        self.assertIn("not among the rows", complaint("grpc", "--plot", "out.svg"))
        self.assertIn("start at 1", complaint("restore", "--bandwidths", "10,0"))
        self.assertEqual(bench.parse_arguments(["restore", "--bandwidths", "10,35"]).bandwidths, [10, 35])
        self.assertNotIn("restore", bench.parse_arguments([]).rows)  # it takes too long

    def test_an_unknown_row(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as err:
            bench.parse_arguments(["--rows", "prefill-513"])
        self.assertIn("no row is called prefill-513", err.getvalue())


if __name__ == "__main__":
    unittest.main()
