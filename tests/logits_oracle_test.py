"""The engine's logits against an independent forward pass in float64 (oracle/llama_oracle.py).

    logits_oracle_test.py LOGITS_TOOL TINY_MODEL_TOOL TOKENIZE_TOOL MODEL.gguf [--report [ENGLISH_TEXT_FILE ...]]

The real model reads natural texts of ten kinds in both modes and with every instruction set that this processor has;
tiny models with random weights cover the tensor types, the head counts, tied and untied outputs and the RoPE scalings.
docs/ACCURACY.md derives the tolerances and has the figures; --report prints its tables, which takes some minutes, and
compares the modes on longer texts.
"""

import collections
import dataclasses
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "oracle"))
from llama_oracle import Llama  # first: it sets the number of threads

import numpy as np

from texts import TEXTS
from tokenize_client import TokenizeTool

PORTABLE_TOKENS = 64  # of a text; the portable kernels are slow


@dataclasses.dataclass(frozen=True)
class Tolerance:
    rms: float  # of all differences, relative to the reference's logits about their mean
    largest: float  # of a difference, in units of the root mean square of that position's logits about their mean
    divergence: float  # Kullback-Leibler, of the engine's distributions from the reference's, mean; in nats
    surprise: float  # of the mean negative log-likelihood of the texts: the logarithm of perplexity


REAL = {"exact": Tolerance(rms=2e-3, largest=0.03, divergence=5e-6, surprise=5e-4),
        "fast": Tolerance(rms=0.1, largest=1.5, divergence=1e-2, surprise=3e-3)}
# Of tiny models, beside a reference that rounds K and V too, by the type of the activations in products.
TINY = {"float32": Tolerance(rms=1e-4, largest=2e-3, divergence=1e-8, surprise=1e-4),
        "int16": Tolerance(rms=5e-4, largest=5e-3, divergence=1e-7, surprise=2e-4),
        "int8": Tolerance(rms=0.04, largest=0.4, divergence=1e-3, surprise=5e-3)}

TINY_MODELS = [
    {"type": "F32", "embedding_type": "F32", "kv_heads": 4},
    {"type": "F16", "embedding_type": "F16", "kv_heads": 2, "tied": 0},
    {"type": "BF16", "embedding_type": "BF16", "kv_heads": 1, "tied": 0},
    {"type": "Q8_0", "embedding_type": "Q8_0", "kv_heads": 4, "tied": 0},
    {"type": "Q4_0", "embedding_type": "Q4_0", "kv_heads": 1, "tied": 0},
    {"type": "Q4_1", "embedding_type": "Q8_0", "kv_heads": 2, "head_dim": 32},
    {"type": "Q4_0", "embedding_type": "F16", "kv_heads": 2, "tied": 0, "rope_linear_factor": 4},
    {"type": "F16", "embedding_type": "Q8_0", "kv_heads": 4, "rope_factors": "1,1,1.5,3.2,8,8,8,8"},
]


class Engine:
    """A running logits_tool."""

    def __init__(self, tool, model, mode, instruction_set, threads=2, chunk=256):
        self.process = subprocess.Popen(
            [tool, model, "--compute", mode, "--instruction-set", instruction_set, "--threads", str(threads),
             "--chunk", str(chunk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def logits(self, tokens, vocabulary_size, first_position=0):
        self.process.stdin.write((" ".join(map(str, [first_position, *tokens])) + "\n").encode())
        self.process.stdin.flush()
        shape = (len(tokens) - first_position, vocabulary_size)
        data = self.process.stdout.read(4 * shape[0] * shape[1])
        assert len(data) == 4 * shape[0] * shape[1], "logits_tool stopped"
        return np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)

    def close(self):
        self.process.stdin.close()
        assert self.process.stdout.read() == b"" and self.process.wait() == 0, "logits_tool failed"


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Differences:
    """Between the engine's logits and the reference's, gathered over positions."""

    def __init__(self):
        self.columns = collections.defaultdict(list)

    def add(self, tokens, logits, expected):
        assert np.isfinite(logits).all()
        spread = np.mean((expected - expected.mean(axis=-1, keepdims=True)) ** 2, axis=-1)
        difference = logits - expected
        self.columns["square"].append(np.mean(difference ** 2, axis=-1) / spread)
        self.columns["largest"].append(np.abs(difference).max(axis=-1) / np.sqrt(spread))
        ours, theirs = log_softmax(logits), log_softmax(expected)
        self.columns["divergence"].append((np.exp(theirs) * (theirs - ours)).sum(axis=-1))
        self.columns["same first"].append(logits.argmax(axis=-1) == expected.argmax(axis=-1))
        places = np.arange(len(tokens) - 1), np.asarray(tokens[1:])
        self.columns["surprise"].append(theirs[places] - ours[places])
        self.columns["expected surprise"].append(-theirs[places])

    def extend(self, other):
        for name, parts in other.columns.items():
            self.columns[name] += parts

    def all(self, name):
        return np.concatenate(self.columns[name])

    @property
    def count(self):
        return len(self.all("square"))

    @property
    def rms(self):
        return float(np.sqrt(self.all("square").mean()))

    @property
    def largest(self):
        return float(self.all("largest").max())

    @property
    def divergence(self):
        return float(self.all("divergence").mean())

    @property
    def surprise(self):
        return float(self.all("surprise").mean())

    def line(self, title):
        surprise = self.all("surprise")
        error = surprise.std() / np.sqrt(len(surprise))
        return (f"| {title} | {self.count:,} | {self.rms:.1e} | {self.largest:.1e} | {self.divergence:.1e} | "
                f"{self.all('same first').mean():.2%} | {np.exp(self.all('expected surprise').mean()):.3f} | "
                f"{surprise.mean():+.3%} ± {error:.3%} |")

    def broken(self, tolerance):
        return [name for name in ("rms", "largest", "divergence", "surprise")
                if abs(getattr(self, name)) > getattr(tolerance, name)]


HEADER = ("| | positions | relative RMS | largest | KL divergence | same first token | perplexity | its change |\n"
          "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")


def activations(options, mode):
    """The widest rounding of activations in a tiny model's products."""
    if options["type"].startswith("Q4") and mode == "fast":
        return "int8"
    return "int16" if "Q" in options["type"] + options["embedding_type"] else "float32"


class Test:
    def __init__(self, logits_tool, tiny_model_tool, tokenize_tool, model, report):
        self.logits_tool, self.tiny_model_tool, self.tokenize_tool = logits_tool, tiny_model_tool, tokenize_tool
        self.model = model
        self.report = report
        flags = pathlib.Path("/proc/cpuinfo").read_text().split()
        self.instruction_sets = ["portable"] + ["avx2"] * all(flag in flags for flag in ("avx2", "fma", "f16c"))
        self.failures = []

    def judge(self, title, differences, tolerance):
        print(differences.line(title), flush=True)
        for name in differences.broken(tolerance):
            self.failures.append(f"{title}: {name} is {getattr(differences, name):.2e}, "
                                 f"at most {getattr(tolerance, name):.2e}")

    def real_model(self):
        tool = TokenizeTool(self.tokenize_tool, self.model)
        prompts = {title: tool.encode(text.encode()) for title, text in TEXTS.items()}
        tool.close()
        reference = Llama(self.model)
        keys = [(mode, name) for name in self.instruction_sets for mode in REAL]
        engines = {key: Engine(self.logits_tool, self.model, *key) for key in keys}
        found = {key: Differences() for key in keys}
        by_text = {}
        floor = Differences()  # what rounding K and V to float16 costs alone
        for title, tokens in prompts.items():
            assert len(tokens) >= PORTABLE_TOKENS, title
            reference.half_kv = False
            expected = reference.logits(tokens)
            for key, engine in engines.items():
                used = tokens if self.report or key[1] != "portable" else tokens[:PORTABLE_TOKENS]
                difference = by_text[title, key] = Differences()
                difference.add(used, engine.logits(used, expected.shape[1]), expected[:len(used)])
                found[key].extend(difference)
            if self.report:
                reference.half_kv = True
                floor.add(tokens, reference.logits(tokens), expected)
        for engine in engines.values():
            engine.close()
        print("\n" + HEADER)
        if self.report:
            print(floor.line("float64 with K and V in float16"))
        for mode, name in keys:
            whole = self.report or name != "portable"  # else perplexity has a larger error of its own
            tolerance = REAL[mode] if whole else dataclasses.replace(REAL[mode], surprise=1e-2)
            self.judge(f"{mode}, {name}", found[mode, name], tolerance)
        if self.report:
            self.show_texts(by_text, keys[-2:])

    def show_texts(self, by_text, keys):
        for mode, name in keys:
            print(f"\n{mode}, {name}, by text\n\n{HEADER}")
            for (title, key), difference in by_text.items():
                if key == (mode, name):
                    print(difference.line(title))

    def fast_beside_exact(self, paths):
        """The exact mode stands for float64 here, from which it is a thousand times less far: it reads fast."""
        tool = TokenizeTool(self.tokenize_tool, self.model)
        exact, fast = (Engine(self.logits_tool, self.model, mode, self.instruction_sets[-1]) for mode in REAL)
        differences = Differences()
        for path in paths:
            tokens = tool.encode(pathlib.Path(path).read_bytes())
            for begin in range(0, len(tokens) - 64, 512):
                piece = tokens[begin:begin + 512]
                differences.add(piece, fast.logits(piece, 49152), exact.logits(piece, 49152))
        for process in (tool, exact, fast):
            process.close()
        print("\n" + HEADER)
        print(differences.line("fast beside exact, English"))

    def tiny_models(self, folder):
        print("\n" + HEADER)
        for i, options in enumerate(TINY_MODELS):
            path = f"{folder}/tiny_{i}.gguf"
            arguments = [f"{key}={value}" for key, value in options.items()]
            subprocess.run([self.tiny_model_tool, path, f"seed={i}", *arguments], check=True)
            reference = Llama(path, half_kv=True)
            random = np.random.default_rng(i)
            prompts = [random.integers(3, 320, count).tolist() for count in (40, 300)]
            expected = [reference.logits(tokens) for tokens in prompts]
            for name in self.instruction_sets:
                for mode in ("exact", "fast") if options["type"].startswith("Q4") else ("exact",):
                    engine = Engine(self.logits_tool, path, mode, name)
                    differences = Differences()
                    for tokens, rows in zip(prompts, expected):
                        differences.add(tokens, engine.logits(tokens, rows.shape[1]), rows)
                    engine.close()
                    title = f"{', '.join(arguments)}: {mode}, {name}"
                    self.judge(title, differences, TINY[activations(options, mode)])

    def chunks_and_reuse_change_nothing(self):
        """Not a bit: neither in other chunks with other threads, nor when the blocks are there already."""
        tool = TokenizeTool(self.tokenize_tool, self.model)
        tokens = tool.encode(TEXTS["encyclopedia"].encode())[:64]
        tool.close()
        one = Engine(self.logits_tool, self.model, "exact", self.instruction_sets[-1])
        two = Engine(self.logits_tool, self.model, "exact", self.instruction_sets[-1], threads=1, chunk=16)
        whole = one.logits(tokens, 49152)
        again = one.logits(tokens, 49152, first_position=40)
        pieces = two.logits(tokens, 49152)
        one.close()
        two.close()
        if not (np.array_equal(whole, pieces) and np.array_equal(whole[40:], again)):
            self.failures.append("chunks, threads or reused blocks change the logits")


def main(arguments):
    test = Test(*arguments[:4], report=arguments[4:5] == ["--report"])
    with tempfile.TemporaryDirectory() as folder:
        test.tiny_models(folder)
    test.real_model()
    test.chunks_and_reuse_change_nothing()
    if arguments[5:]:
        test.fast_beside_exact(arguments[5:])
    for failure in test.failures:
        print("FAILED", failure)
    return 1 if test.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
