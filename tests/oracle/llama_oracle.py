"""An independent forward pass of llama models in numpy float64: what the engine is measured against.

Weights are read and dequantised by the `gguf` package, everything else is written here from the
papers (Touvron et al. 2023; Su et al. 2021; Ainslie et al. 2023), and every product and sum is in
double precision. It shares no code with Cairn.

As a module:
    model = Llama(path)
    logits = model.logits(tokens)                      # [len(tokens), vocabulary]
    cache = model.new_cache()                          # the same in pieces
    first, rest = model.logits(a, cache), model.logits(b, cache)

As a program:
    llama_oracle.py MODEL PROMPTS OUT [--continue N] [--dtype float32] [--half-kv]
PROMPTS is a JSON file with a list of lists of token ids. The folder OUT gets, for prompt i,
    logits_<i>.bin      raw little-endian [tokens + N - 1, vocabulary], in order of position (with
                        N = 0 the prompt's rows alone); row p predicts position p + 1
    continuations.txt   a line for each prompt: the N greedy tokens, separated by spaces
    margins.txt         a line for each prompt: by how much each of them was ahead of the next best
"""

import argparse
import json
import os
import pathlib

# Threads of BLAS that spin for each other on a busy machine are many times slower than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gguf
import numpy as np


def rms_norm(x, gain, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * gain


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


class Cache:
    """Keys (rotated) and values of one sequence: per layer [position, kv_head, dim]."""

    def __init__(self, layer_count, kv_head_count, head_dim):
        empty = np.zeros((0, kv_head_count, head_dim))
        self.keys = [empty] * layer_count
        self.values = [empty] * layer_count

    @property
    def length(self):
        return len(self.keys[-1])

    def extend(self, layer, keys, values):
        self.keys[layer] = np.concatenate([self.keys[layer], keys])
        self.values[layer] = np.concatenate([self.values[layer], values])
        return self.keys[layer], self.values[layer]


class Llama:
    def __init__(self, path, half_kv=False, extension=1.0):
        """half_kv rounds keys and values to float16, as the engine stores them; `extension` is the
        factor that positions are drawn together by for a context beyond the trained one."""
        reader = gguf.GGUFReader(path)
        self.half_kv = half_kv
        tensors = {tensor.name: tensor for tensor in reader.tensors}

        def value(key, default=None):
            field = reader.fields.get(key)
            return default if field is None else field.contents()

        def tensor(name):
            stored = tensors[name]
            return gguf.quants.dequantize(stored.data, stored.tensor_type).astype(np.float64)

        assert value("general.architecture") == "llama"
        self.head_count = value("llama.attention.head_count")
        self.kv_head_count = value("llama.attention.head_count_kv", self.head_count)
        width = value("llama.embedding_length")
        self.head_dim = value("llama.attention.key_length", width // self.head_count)
        self.epsilon = value("llama.attention.layer_norm_rms_epsilon")
        self.rope_dim = value("llama.rope.dimension_count", self.head_dim)
        base = value("llama.rope.freq_base", 10000.0)
        self.frequencies = base ** (-np.arange(0, self.rope_dim, 2) / self.rope_dim)
        if "rope_freqs.weight" in tensors:
            self.frequencies /= tensor("rope_freqs.weight")
        if value("llama.rope.scaling.type", "linear") == "linear":
            older = value("llama.rope.scale_linear", 1.0)
            self.frequencies /= value("llama.rope.scaling.factor", older)
        self.frequencies /= extension

        names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
                 "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        self.layers = [{name: tensor(f"blk.{i}.{name}.weight") for name in names}
                       for i in range(value("llama.block_count"))]
        self.embedding = tensor("token_embd.weight")
        tied = "output.weight" not in tensors
        self.output = self.embedding if tied else tensor("output.weight")
        self.output_norm = tensor("output_norm.weight")

    def new_cache(self):
        return Cache(len(self.layers), self.kv_head_count, self.head_dim)

    def logits(self, tokens, cache=None):
        """[len(tokens), vocabulary]; appends to `cache`, which stands for the tokens before."""
        return self.forward([(cache or self.new_cache(), tokens)])[0]

    def forward(self, batch):
        """Runs pairs of (cache, tokens) together; returns the logits of each."""
        counts = [len(tokens) for _, tokens in batch]
        spans = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
        positions = np.concatenate(
            [cache.length + np.arange(len(tokens)) for cache, tokens in batch])
        angles = positions[:, None, None] * self.frequencies  # [row, 1, pair]
        x = self.embedding[np.concatenate([np.asarray(tokens) for _, tokens in batch])]
        for i, layer in enumerate(self.layers):
            normed = rms_norm(x, layer["attn_norm"], self.epsilon)
            q = self.rotate(self.heads(normed @ layer["attn_q"].T), angles)
            k = self.rotate(self.heads(normed @ layer["attn_k"].T), angles)
            v = self.heads(normed @ layer["attn_v"].T)
            if self.half_kv:
                k, v = (a.astype(np.float16).astype(np.float64) for a in (k, v))
            mixed = np.empty((len(x), self.head_count * self.head_dim))
            for (cache, _), rows in zip(batch, spans):
                mixed[rows] = self.attend(q[rows], *cache.extend(i, k[rows], v[rows]))
            x = x + mixed @ layer["attn_output"].T
            normed = rms_norm(x, layer["ffn_norm"], self.epsilon)
            gate = normed @ layer["ffn_gate"].T
            hidden = gate / (1 + np.exp(-gate)) * (normed @ layer["ffn_up"].T)
            x = x + hidden @ layer["ffn_down"].T
        logits = rms_norm(x, self.output_norm, self.epsilon) @ self.output.T
        return [logits[rows] for rows in spans]

    def heads(self, x):
        return x.reshape(len(x), -1, self.head_dim)

    def rotate(self, x, angles):
        """Turns each adjacent pair of the first rope_dim dimensions by its angle."""
        even, odd = x[..., 0:self.rope_dim:2], x[..., 1:self.rope_dim:2]
        turned = x.copy()
        turned[..., 0:self.rope_dim:2] = even * np.cos(angles) - odd * np.sin(angles)
        turned[..., 1:self.rope_dim:2] = even * np.sin(angles) + odd * np.cos(angles)
        return turned

    def attend(self, q, keys, values):
        """Causal attention of the last len(q) positions; query heads share K and V in groups."""
        count, total = len(q), len(keys)
        group = self.head_count // self.kv_head_count
        q = q.reshape(count, self.kv_head_count, group, self.head_dim)
        scores = np.einsum("tkgd,skd->tkgs", q, keys, optimize=True) / np.sqrt(self.head_dim)
        later = np.arange(total) > total - count + np.arange(count)[:, None]
        scores[np.broadcast_to(later[:, None, None, :], scores.shape)] = -np.inf
        mixed = np.einsum("tkgs,skd->tkgd", softmax(scores), values, optimize=True)
        return mixed.reshape(count, self.head_count * self.head_dim)


def run(model, prompts, continuation_count):
    """For each prompt: its logits (and the continuation's), the greedy tokens and their margins."""
    caches = [model.new_cache() for _ in prompts]
    logits = [[rows] for rows in model.forward(list(zip(caches, prompts)))]
    continuations = [[] for _ in prompts]
    margins = [[] for _ in prompts]
    for step in range(continuation_count):
        for i, rows in enumerate(logits):
            second, first = np.partition(rows[-1][-1], -2)[-2:]
            continuations[i].append(int(np.argmax(rows[-1][-1])))
            margins[i].append(float(first - second))
        if step + 1 < continuation_count:
            steps = [(cache, tokens[-1:]) for cache, tokens in zip(caches, continuations)]
            for rows, more in zip(logits, model.forward(steps)):
                rows.append(more)
    return [np.concatenate(rows) for rows in logits], continuations, margins


def main():
    parser = argparse.ArgumentParser(description="Logits and greedy continuations in float64.")
    parser.add_argument("model")
    parser.add_argument("prompts", type=pathlib.Path, help="JSON: a list of lists of token ids")
    parser.add_argument("out", type=pathlib.Path, help="a folder")
    parser.add_argument("--continue", dest="count", type=int, default=0, metavar="N")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--half-kv", action="store_true", help="round K and V to float16")
    parser.add_argument("--extension", type=float, default=1.0,
                        help="the factor that positions are drawn together by")
    args = parser.parse_args()
    prompts = json.loads(args.prompts.read_text())
    model = Llama(args.model, args.half_kv, args.extension)
    logits, continuations, margins = run(model, prompts, args.count)
    args.out.mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(logits):
        rows.astype(args.dtype).tofile(args.out / f"logits_{i}.bin")
    for name, lines in (("continuations", continuations), ("margins", margins)):
        text = "".join(" ".join(map(repr, line)) + "\n" for line in lines)
        (args.out / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
