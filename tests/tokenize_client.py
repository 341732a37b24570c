"""Talks to tests/tokenize_tool.cc and reads the vocabulary of a model file."""

import struct
import subprocess

import gguf


class TokenizeTool:
    """One running tokenize_tool; `changes` are its KEY=VALUE arguments."""

    def __init__(self, tool, model, *changes):
        self._process = subprocess.Popen(
            [tool, model, *changes], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self):
        self._process.stdin.close()
        assert self._process.wait() == 0, "tokenize_tool failed"

    def _ask(self, request):
        self._process.stdin.write(struct.pack("<I", len(request)) + request)
        self._process.stdin.flush()
        (size,) = struct.unpack("<I", self._process.stdout.read(4))
        answer = self._process.stdout.read(size)
        if answer[0] != 0:
            raise ValueError(answer[1:].decode())
        return answer[1:]

    def encode(self, text):
        return _ids(self._ask(b"E" + text))

    def detokenize(self, ids):
        return self._ask(b"D" + _bytes(ids)).decode()

    def render_start(self, messages, prompt):
        return _ids(self._ask(b"S" + bytes([prompt]) + _messages(messages)))

    def render_next(self, messages, prompt):
        return _ids(self._ask(b"N" + bytes([prompt]) + _messages(messages)))

    def closing(self, ids):
        return _ids(self._ask(b"C" + _bytes(ids)))


def _ids(data):
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def _bytes(ids):
    return struct.pack(f"<{len(ids)}I", *ids)


def _messages(messages):
    fields = [m[key].encode() for m in messages for key in ("role", "content")]
    return b"".join(struct.pack("<I", len(field)) + field for field in fields)


class Vocabulary:
    """The tokenizer.* metadata of a model file, as the gguf package reads it."""

    def __init__(self, model):
        fields = gguf.GGUFReader(model).fields
        self.tokens = fields["tokenizer.ggml.tokens"].contents()
        self.types = fields["tokenizer.ggml.token_type"].contents()
        self.merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
        self.bos = fields["tokenizer.ggml.bos_token_id"].contents()
        self.eos = fields["tokenizer.ggml.eos_token_id"].contents()
        self.chat_template = fields["tokenizer.chat_template"].contents()

    def text_ids(self):
        """Token -> id of the normal tokens, those that plain text may become."""
        return {t: i for i, (t, kind) in enumerate(zip(self.tokens, self.types)) if kind == 1}
