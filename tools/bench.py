#!/usr/bin/env python3
"""Measures Cairn beside llama.cpp and the machine. `./cairn bench` runs it; docs/BENCHMARKS.md explains the rows.

Everything runs in one go and in alternation: row by row each contestant has one turn in a process of its own, and that
is repeated, so that all of them see the same weather. A figure is the median of its turns. Only one thing is cut short:
of llama.cpp's two attention variants on a file, the one that is more than 20 % behind in a row's first turn sits out
the others.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import bench_layouts
import bench_predictions
import bench_report
import bench_restore
import bench_returns
import bench_tiers
import restore_plot
from bench_contestants import ROWS, BenchError, Cairn, llama_cpp, run

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTRAS = ["grpc", "durable", "tiers", "start", "scaling", "threads", "roofline"]
LONG = ["restore", "layouts", "predictions", "returns"]  # up to half an hour each, so only when named
CPU_ROWS = ["threads", "roofline"]
SCALING_CONTEXTS = (64, 256, 1024, 2048, 4096, 7800)
SERVED = ((64, 1), (128, 8))  # context and streams
SERVED_TOKENS = 256  # by each stream: the first and last ones are not all at the same time
DURABILITIES = ("none", "os", "sync")
SMALL_POOL = "64MiB"  # which eight streams of 512 tokens fill
HOPELESS = 0.8  # of the better variant


def say(text):
    print(text, file=sys.stderr, flush=True)


def take_turns(rows, contestants, alternations):
    """{row: {contestant: [figures]}}"""
    samples = {row.name: {} for row in rows}
    begin = time.monotonic()
    for turn in range(alternations):
        for row in rows:
            for contestant in entrants(row, contestants, samples[row.name]):
                value = contestant.read(row, run(contestant.command(row)))
                samples[row.name].setdefault(contestant.name, []).append(value)
                minutes = (time.monotonic() - begin) / 60
                say(f"[{turn + 1}/{alternations}, {minutes:4.1f} min] {row.title}: {contestant.name} "
                    f"{bench_report.number(value)} {row.unit}")
    return samples


def entrants(row, contestants, samples):
    best = {}  # of a column, so far
    for contestant in contestants:
        if contestant.name in samples:
            best[contestant.column] = max(best.get(contestant.column, 0), samples[contestant.name][0])
    return [contestant for contestant in contestants if contestant.enters(row) and
            (contestant.name not in samples or
             samples[contestant.name][0] >= HOPELESS * best[contestant.column])]


def medians(samples):
    """{title: {name: median}} of {title: {name: [figures]}}"""
    return {title: {name: statistics.median(values) for name, values in of.items()} for title, of in samples.items()}


def measure_grpc(cairns, repeat):
    """What a client sees beside what the engine does alone, in tokens/s, and what of the served steps' time is not
    the model's: {mode: {title: {"engine", "client", "overhead"}}}."""
    report = {}
    for cairn in cairns:
        samples = {}
        for turn in range(repeat):
            for context, streams in SERVED:
                title = f"decode, {streams} stream{'s' * (streams > 1)} at {context}"
                say(f"grpc: {cairn.name}, {title}")
                with tempfile.TemporaryDirectory() as folder:
                    trace = pathlib.Path(folder) / "trace.json"
                    with cairn.server("--trace", trace) as server:
                        served = run(cairn.serving_command(server.address, context, streams, SERVED_TOKENS))
                    overhead = bench_report.overhead(json.loads(trace.read_text()), streams)
                alone = run(cairn.command_for([f"decode:{context}:{streams}:{SERVED_TOKENS}"]))
                figures = {name: cairn.read_cases(output)[-1]["tokens_per_s"]
                           for name, output in (("client", served), ("engine", alone))}
                for name, value in {**figures, "overhead": overhead}.items():
                    samples.setdefault(title, {}).setdefault(name, []).append(value)
        report[cairn.mode] = medians(samples)
    return report


def measure_durable(cairns, repeat):
    """What a client sees with sessions on the disk, in tokens/s: {mode: {title: {level of --durability: tokens/s}}}."""
    report = {}
    for cairn in cairns:
        samples = {}
        for turn in range(repeat):
            for context, streams in SERVED:
                title = f"decode, {streams} stream{'s' * (streams > 1)} at {context}"
                for level in DURABILITIES:
                    say(f"durable: {cairn.name}, {title}, {level}")
                    with tempfile.TemporaryDirectory(dir=cairn.build) as folder:  # on a disk, as /tmp may not be
                        flags = ["--disk-dir", pathlib.Path(folder) / "data", "--durability", level]
                        with cairn.server(*flags) as server:
                            served = run(cairn.serving_command(server.address, context, streams, SERVED_TOKENS))
                    rate = cairn.read_cases(served)[-1]["tokens_per_s"]
                    samples.setdefault(title, {}).setdefault(level, []).append(rate)
        report[cairn.mode] = medians(samples)
    return report


def measure_start(cairns, repeat):
    """{mode: {"seconds": from start to ready, "resident", "weights", "pool": bytes, when the pool is full}}"""
    report = {}
    for cairn in cairns:
        seconds, resident = [], []
        for turn in range(repeat):
            say(f"start: {cairn.name}")
            with cairn.server(device_memory=SMALL_POOL) as server:
                run(cairn.serving_command(server.address, 512, 8, 32))
                seconds.append(server.start_seconds)
                resident.append(server.resident_bytes())
        report[cairn.mode] = {"seconds": statistics.median(seconds), "resident": statistics.median(resident),
                              "weights": cairn.model.stat().st_size, "pool": 64 << 20}
    return report


def measure_scaling(cairns, repeat):
    """Decode time a token against context: on a machine at rest a straight line without a cliff."""
    scaling = {}
    for cairn in cairns:
        say(f"scaling: {cairn.name} at contexts {SCALING_CONTEXTS[0]} to {SCALING_CONTEXTS[-1]:,}")
        cases = [f"decode:{context}:1" for context in SCALING_CONTEXTS]
        rates = {}
        for case in cairn.read_cases(run(cairn.command_for(cases, repeat=repeat))):
            rates.setdefault(case["context"], []).append(case["tokens_per_s"])
        times = {context: 1e3 / statistics.median(values) for context, values in rates.items()}
        middles = [context + 16 for context in times]  # of the 32 tokens that are decoded
        a, b, deviation = bench_report.fit_line(middles, list(times.values()))
        scaling[cairn.mode] = {"contexts": times, "a_ms": a, "b_us": b * 1e3, "deviation": deviation}
    return scaling


def measure_threads(cairns, repeat):
    threads = {}
    for cairn in cairns:
        rates = {}
        for turn in range(repeat):
            for count in (1, 2):
                say(f"threads: {cairn.name}, {count}")
                cases = cairn.read_cases(run(cairn.command_for(["prefill:512", "prefill:2048"], threads=count)))
                for case in cases:
                    rates.setdefault(f"prefill {case['context']:,}", {}).setdefault(count, []).append(
                        case["tokens_per_s"])
        threads[cairn.mode] = medians(rates)
    return threads


def measure_roofline(folder, cairn):
    say("roofline: kernel_bench, attention_bench")
    kernels = run([folder / "tests/kernel_bench", cairn.threads])
    attention = run([folder / "tests/attention_bench", cairn.threads])
    costs = cairn.read_costs(run(cairn.command_for(["prefill:64"])))
    return {"text": kernels + "\n" + attention, "costs": costs, **bench_report.read_kernel_bench(kernels),
            "attention": bench_report.read_attention_bench(attention)}


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def parse_arguments(arguments):
    usual = [row.name for row in ROWS] + EXTRAS
    names = usual + LONG
    parser = argparse.ArgumentParser(
        prog="cairn bench", description="Measures Cairn beside llama.cpp and beside what the machine can do.",
        epilog="rows: " + ", ".join(usual) + "; and, when named, " + ", ".join(LONG) + ", which take up to half an hour each. "
        "`cairn bench tiers` measures that row. `cairn bench --setup` builds llama.cpp first (10 to 20 minutes).")
    parser.add_argument("--rows", default=",".join(usual), metavar="NAME,...", help="only these, by name")
    parser.add_argument("only", nargs="*", metavar="ROW", help="as --rows ROW,...")
    parser.add_argument("--alternations", type=int, default=5, metavar="N", help="turns of each (default 5)")
    parser.add_argument("--quick", action="store_true", help="one turn of each")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of every engine (default 2)")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu",
                        help="cuda: on a GPU, alone, and without the rows " + " and ".join(CPU_ROWS))
    parser.add_argument("--context", type=int, metavar="TOKENS",
                        help=f"of the session in the rows restore (default {bench_restore.CONTEXT}), layouts "
                        f"({bench_layouts.CONTEXT}) and predictions (" + ", ".join(map(str, bench_predictions.CONTEXTS)) + ")")
    parser.add_argument("--bandwidths", metavar="MB/S,...", type=lambda text: [int(one) for one in text.split(",")],
                        help="of the disk in the rows restore (default " + ",".join(map(str, bench_restore.BANDWIDTHS)) +
                        "), layouts (" + ",".join(map(str, bench_layouts.BANDWIDTHS)) +
                        ") and predictions (" + ",".join(map(str, bench_predictions.BANDWIDTHS)) + ")")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help="the row restore as a picture: .png or .svg")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="everything measured, for machines")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)  # of the arguments, and no more
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / ".cache", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.rows = options.only or [name for name in options.rows.split(",") if name]
    for name in options.rows:
        if name not in names:
            parser.error(f"no row is called {name}; there are {', '.join(names)}")
    if options.alternations < 1 or options.threads < 1:
        parser.error("--alternations and --threads start at 1")
    check_restore(parser, options)
    if options.quick:
        options.alternations = 1
    if options.backend == "cuda":
        options.alone = True
        options.rows = [name for name in options.rows if name not in CPU_ROWS]
    return options


def check_restore(parser, options):
    if options.context and not bench_restore.CONTEXT_MIN <= options.context <= bench_restore.CONTEXT_MAX:
        parser.error(f"--context lies between {bench_restore.CONTEXT_MIN} and {bench_restore.CONTEXT_MAX}")
    if options.bandwidths and min(options.bandwidths) < 1:
        parser.error("--bandwidths start at 1")
    if options.plot is None:
        return
    if options.plot.suffix not in restore_plot.SUFFIXES:
        parser.error(f"--plot draws {' and '.join(restore_plot.SUFFIXES)} files, not {options.plot}")
    if "restore" not in options.rows:
        parser.error("--plot draws the row restore, which is not among the rows")


def measure(options):
    models = options.cache / "models"
    cairns = [Cairn(options.bin, models / "SmolLM2-135M-Instruct.Q4_1.gguf", mode, options.threads, options.backend)
              for mode in bench_report.MODES]
    for path in (cairns[0].command_for([])[0], cairns[0].model):
        if not path.is_file():
            raise BenchError(f"{path} is missing: run ./cairn bench, which builds and fetches it")
    rows = [row for row in ROWS if row.name in options.rows]
    others = llama_cpp(options.cache / "llama.cpp", models, options.threads) if rows and not options.alone else []
    contestants = others + cairns
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"warning: the machine is busy (load {load:.1f}); figures need a quiet one")
    samples = take_turns(rows, contestants, options.alternations)
    report = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "processor": processor(), "threads": options.threads, "load_at_start": load,
              "alternations": options.alternations,
              "rows": bench_report.summarize(rows, contestants, samples)}
    repeat = 1 if options.quick else 3
    if "grpc" in options.rows:
        report["grpc"] = measure_grpc(cairns, options.alternations)
    if "durable" in options.rows:
        report["durable"] = measure_durable(cairns, options.alternations)
    if "tiers" in options.rows:
        report["tiers"] = bench_tiers.measure(cairns[-1], options.cache / "llama.cpp",
                                              models / "SmolLM2-135M-Instruct.Q4_0.gguf", repeat, options.alone, say)
    if "restore" in options.rows:
        report["restore"] = bench_restore.measure(
            cairns[-1], options.context or bench_restore.CONTEXT,
            options.bandwidths or (bench_restore.QUICK_BANDWIDTHS if options.quick else bench_restore.BANDWIDTHS),
            options.alternations, say)
    if "layouts" in options.rows:
        report["layouts"] = bench_layouts.measure(cairns[-1], options.context or bench_layouts.CONTEXT,
                                                  options.bandwidths or bench_layouts.BANDWIDTHS, options.alternations, say)
    if "predictions" in options.rows:
        contexts = [options.context] if options.context else bench_predictions.CONTEXTS
        report["predictions"] = bench_predictions.measure(cairns[-1], contexts, options.bandwidths or bench_predictions.BANDWIDTHS,
                                                          options.alternations, say)
    if "returns" in options.rows:
        report["returns"] = bench_returns.measure(cairns[-1], options.alternations, say)
    if "start" in options.rows:
        report["start"] = measure_start(cairns, options.alternations)
    if "scaling" in options.rows:
        report["scaling"] = measure_scaling(cairns, repeat)
    if "threads" in options.rows:
        report["thread_scaling"] = measure_threads(cairns, repeat)
    if "roofline" in options.rows:
        report["roofline"] = roofline = measure_roofline(options.bin, cairns[0])
        roofline["engine"] = bench_report.engine_roofline(report["rows"], rows, roofline["costs"], roofline)
    return report


def show(report):
    print(f"{report['processor']}, {report['threads']} threads, medians of {report['alternations']}, {report['date']}")
    if report["rows"]:
        print("\n" + bench_report.comparison_table(report["rows"]))
    if "grpc" in report:
        print("\n" + bench_report.grpc_table(report["grpc"]))
    if "durable" in report:
        print("\n" + bench_report.durable_table(report["durable"]))
    if "tiers" in report:
        print("\n" + bench_tiers.table(report["tiers"]))
    if "restore" in report:
        print("\n" + bench_restore.table(report["restore"]))
    if "layouts" in report:
        print("\n" + bench_layouts.table(report["layouts"]))
    if "predictions" in report:
        print("\n" + bench_predictions.table(report["predictions"]))
    if "returns" in report:
        print("\n" + bench_returns.table(report["returns"]))
    if "start" in report:
        print("\n" + bench_report.start_table(report["start"]))
    if "scaling" in report:
        print("\n" + bench_report.scaling_table(report["scaling"]))
    if "thread_scaling" in report:
        print("\n" + bench_report.threads_table(report["thread_scaling"]))
    if "roofline" in report:
        if report["roofline"]["engine"]:
            print("\n" + bench_report.roofline_table(report["roofline"]["engine"]))
        print("\n" + report["roofline"]["text"], end="")


def main(arguments):
    options = parse_arguments(arguments)
    if options.check:
        return 0
    try:
        report = measure(options)
    except BenchError as error:
        say(f"cairn bench: {error}")
        return 1
    except KeyboardInterrupt:
        say("cairn bench: stopped")
        return 130
    show(report)
    if options.plot:
        restore_plot.draw(report["restore"], options.plot)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
