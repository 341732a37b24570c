"""The rows of `./cairn bench` and who runs in them: for each, the command to start and how to read what it prints."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

DECODED_TOKENS = 32  # by each stream in one run, by every engine


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    title: str
    kind: str  # "prefill", "decode" or "cached"
    tokens: int  # of the prompt, or of the context that decoding starts at
    streams: int = 1
    # By mode, the least ratio to the yardstick; of a cached prompt, the most milliseconds.
    goals: dict = dataclasses.field(default_factory=dict)

    @property
    def unit(self):
        return "ms" if self.kind == "cached" else "tokens/s"


ROWS = [
    Row("prefill-512", "prefill, 512 tokens", "prefill", 512, goals={"fast": 2.3, "exact": 1.3}),
    Row("prefill-2048", "prefill, 2,048 tokens", "prefill", 2048, goals={"fast": 2.2, "exact": 1.6}),
    Row("prefill-6144", "prefill, 6,144 tokens", "prefill", 6144, goals={"fast": 2.1, "exact": 1.9}),
    Row("decode-64", "decode, context 64", "decode", 64, goals={"fast": 1.8, "exact": 1.5}),
    Row("decode-4096", "decode, context 4,096", "decode", 4096, goals={"fast": 2.7, "exact": 2.7}),
    Row("decode-7800", "decode, context 7,800", "decode", 7800, goals={"fast": 2.7, "exact": 2.7}),
    Row("decode-8x128", "decode, 8 streams at 128", "decode", 128, streams=8, goals={"fast": 3.2, "exact": 2.2}),
    Row("cached-6144", "first token, 6,144 cached", "cached", 6144, goals={"fast": 20, "exact": 20}),
]


class BenchError(Exception):
    """What stops the bench, in words for the person who started it."""


def json_lines(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@dataclasses.dataclass(frozen=True)
class Served:
    """A running cairnd."""

    address: str
    start_seconds: float  # from its start until it listens
    process_id: int

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process_id}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


@dataclasses.dataclass(frozen=True)
class Cairn:
    """One mode of this engine, run by engine_bench; and as a server, seen by serving_bench."""

    build: pathlib.Path  # the folder of the build
    model: pathlib.Path
    mode: str
    threads: int
    backend: str = "cpu"  # or "cuda"

    @property
    def name(self):
        return f"cairn {self.mode}"

    @property
    def column(self):
        return self.name

    def enters(self, row):
        return True

    def command(self, row):
        case = f"decode:{row.tokens}:{row.streams}" if row.kind == "decode" else f"{row.kind}:{row.tokens}"
        return self.command_for([case])

    def command_for(self, cases, threads=None, repeat=1):
        program = "tests/engine_bench" if self.backend == "cpu" else "tests/on_device/cuda_engine_bench"
        return [self.build / program, self.model, "--threads", threads or self.threads,
                "--compute", self.mode, "--repeat", repeat, *cases]

    @contextlib.contextmanager
    def server(self, *flags, device_memory="1GiB"):
        """A cairnd in this mode, for as long as it is needed."""
        command = [self.build / "service/cairnd", "--model", self.model, "--threads", self.threads,
                   "--compute", self.mode, "--backend", self.backend, "--listen", "127.0.0.1:0", "--device-memory", device_memory, *flags]
        begin = time.monotonic()
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=log, text=True)
            try:
                for line in process.stdout:
                    if found := re.fullmatch(r"listening on (\S+)\n", line):
                        yield Served(found[1], time.monotonic() - begin, process.pid)
                        return
                log.seek(0)
                raise BenchError(f"cairnd did not start: {log.read()[-2000:]}")
            finally:
                process.terminate()
                process.wait(timeout=60)
                process.stdout.close()

    def serving_command(self, address, context, streams, tokens):
        return [self.build / "tests/serving_bench", address, context, streams, tokens]

    def read(self, row, output):
        return self.read_cases(output)[-1]["ms" if row.kind == "cached" else "tokens_per_s"]

    @staticmethod
    def read_cases(output):
        return [line for line in json_lines(output) if "case" in line]

    @staticmethod
    def read_costs(output):
        [costs] = [line for line in json_lines(output) if "weight_bytes" in line]
        return costs


@dataclasses.dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp on one file, with or without flash attention, run by its own benches."""

    folder: pathlib.Path
    model: pathlib.Path
    quantisation: str
    flash_attention: int
    threads: int

    @property
    def name(self):
        return f"llama.cpp {self.quantisation} -fa {self.flash_attention}"

    @property
    def column(self):
        return f"llama.cpp {self.quantisation}"

    def enters(self, row):
        return row.kind != "cached"

    def command(self, row):
        common = ["-m", self.model, "-t", self.threads]
        if row.streams > 1:
            return [self.folder / "llama-batched-bench", *common, "-tb", self.threads, "-npp", row.tokens,
                    "-ntg", DECODED_TOKENS, "-npl", row.streams, "-c", 2 * row.streams * (row.tokens + DECODED_TOKENS),
                    "-fa", ("off", "on")[self.flash_attention], "--output-format", "jsonl"]
        # Long runs need no warm-up of their own, and decoding has one in reading its context.
        warm_up = [] if row.kind == "prefill" and row.tokens <= 2048 else ["--no-warmup"]
        prefill = ["-p", row.tokens, "-n", 0]
        decode = ["-p", 0, "-n", DECODED_TOKENS, "-d", row.tokens]
        return [self.folder / "llama-bench", *common, "-fa", self.flash_attention, "-r", 1, "-o", "jsonl",
                *(prefill if row.kind == "prefill" else decode), *warm_up]

    def read(self, row, output):
        [line] = json_lines(output)
        if row.streams > 1:
            found = (line["pp"], line["tg"], line["pl"])
            expected = (row.tokens, DECODED_TOKENS, row.streams)
            rate = line["speed_tg"]
        else:
            found = (line["n_prompt"], line["n_gen"], line["n_depth"])
            expected = (row.tokens, 0, 0) if row.kind == "prefill" else (0, DECODED_TOKENS, row.tokens)
            rate = line["avg_ts"]
        if found != expected or line["flash_attn"] != self.flash_attention:
            raise BenchError(f"{self.name} measured {found} with -fa {line['flash_attn']}, not {expected}")
        return rate


def run(command):
    """What `command` prints; BenchError when it fails."""
    words = [str(word) for word in command]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_", "GGML_"))}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=1800, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        raise BenchError(f"{' '.join(words)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def llama_cpp(home, models, threads):
    """The four runs of the yardstick; BenchError when they are not set up."""
    folder = home / "bin"
    files = {"Q4_1": models / "SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_0": models / "SmolLM2-135M-Instruct.Q4_0.gguf"}
    wanted = [folder / "llama-bench", folder / "llama-batched-bench", *files.values()]
    missing = [str(path) for path in wanted if not path.is_file()]
    if missing:
        raise BenchError("llama.cpp is not set up (" + ", ".join(missing) + " missing): run ./cairn bench --setup, "
                         "10 to 20 minutes; or measure Cairn alone with --alone")
    return [LlamaCpp(folder, file, quantisation, flash_attention, threads)
            for quantisation, file in files.items() for flash_attention in (0, 1)]
