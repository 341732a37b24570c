"""The oracle against what must hold of any forward pass, and against what the real model knows."""

import sys

from llama_oracle import Llama, run  # first: it sets the number of threads

import gguf
import numpy as np


def check_pieces_equal_the_whole(model, tokens):
    whole = model.logits(tokens)
    cache = model.new_cache()
    pieces = [model.logits(tokens[a:b], cache) for a, b in ((0, 1), (1, 6), (6, len(tokens)))]
    assert np.abs(np.concatenate(pieces) - whole).max() < 1e-10
    together = model.forward([(model.new_cache(), tokens[:4]), (model.new_cache(), tokens)])
    assert np.abs(together[0] - whole[:4]).max() < 1e-10
    assert np.abs(together[1] - whole).max() < 1e-10


def check_later_tokens_do_not_matter(model, tokens):
    changed = tokens[:5] + [tokens[0]] * (len(tokens) - 5)
    assert np.abs(model.logits(changed)[:5] - model.logits(tokens)[:5]).max() < 1e-10
    assert np.abs(model.logits(changed)[5:] - model.logits(tokens)[5:]).max() > 1


def check_order_matters(model, tokens):
    swapped = [tokens[1], tokens[0]] + tokens[2:]
    assert np.abs(model.logits(swapped)[-1] - model.logits(tokens)[-1]).max() > 0.1


def check_the_model_knows(model, vocabulary, prompt, answer):
    tokens = [vocabulary.index(text) for text in prompt.split("|")]
    _, (continuation,), _ = run(model, [tokens], 4)
    said = "".join(vocabulary[token] for token in continuation)
    assert said.startswith(answer), said


def main(path):
    model = Llama(path)
    vocabulary = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    tokens = [(7919 * i + 1234) % len(vocabulary) for i in range(12)]
    check_pieces_equal_the_whole(model, tokens)
    check_later_tokens_do_not_matter(model, tokens)
    check_order_matters(model, tokens)
    check_the_model_knows(model, vocabulary, "The|Ġcapital|Ġof|ĠFrance|Ġis", "ĠParis")
    check_the_model_knows(model, vocabulary, "1|,|Ġ|2|,|Ġ|3|,|Ġ|4|,|Ġ", "5,Ġ6")


if __name__ == "__main__":
    main(sys.argv[1])
