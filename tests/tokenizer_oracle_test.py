"""Compares Cairn's tokenizer, id for id, with the `tokenizers` package on the same vocabulary.

    tokenizer_oracle_test.py TOKENIZE_TOOL MODEL.gguf [STRINGS]

The strings (20,000 for the model's own pre-tokenizer, a quarter of that for each other one) are
generated from a fixed seed. Texts come back from their ids as Python's own decoder reads the bytes.
"""

import glob
import os
import random
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from tokenize_client import TokenizeTool, Vocabulary

SEED = 20240607

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

NATURAL = """
The quick brown fox jumps over the lazy dog; it's 3:45 p.m., isn't it? WE'LL SEE -- they'd've gone.
Größenwahnsinnige Straßenbahnschaffner äußern übrigens Überraschendes über Öl. »Ach so«, sagte er.
L'été dernier, nous n'étions qu'à 12 km de l'océan… Ça alors ! Où est-ce qu'on va ?
El niño comió jalapeños en Ñuñoa; ¿cuánto costó? ¡Muchísimo! São Paulo não é só café à beira-mar.
Съешь же ещё этих мягких французских булок, да выпей чаю. Київ – столиця України, їжак і ґанок.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Öz Türkçe yazılmış ağır ışık İstanbul'da. Zażółć gęślą jaźń.
天地玄黄,宇宙洪荒。日月盈昃,辰宿列张。今天天气很好,我们去公园散步吧!価格は1,234円です。
吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。カタカナもﾊﾝｶｸも使います。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 가격은 ₩9,900입니다.
يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. السعر ١٢٣٫٤٥ ريالًا. سَلَامٌ عَلَيْكُمْ
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם עֲלֵיכֶם
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। मूल्य ₹१२३
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ราคา ๑๒๓ บาท
ყველა ადამიანი იბადება თავისუფალი. Բոլոր մարդիկ ծնվում են ազատ ու հավասար. ሰው ሁሉ ነጻ ሆኖ ይወለዳል።
def fib(n: int) -> int:\n    return n if n < 2 else fib(n - 1) + fib(n - 2)  # O(φ^n)\n\n\nprint(fib(10))
for (size_t i = 0; i < n; ++i) {\n\t\tsum += *(ptr + i) << 3 & 0xFF;\n\t}\n#include <vector>\r\n// end\r\n
{"key": [1, 2.5e-10, null, true], "path": "C:\\\\Users\\\\x", "url": "https://example.org/?q=a%20b&c=1#d"}
👨‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumbs, 🇩🇪🇯🇵 flags, 1️⃣ keycap, ❤️‍🔥, 🧑🏿‍🚀 in 🚀!!! ½ ² Ⅷ ⑩ ㊿ ٣ 𝟘 𝔘𝔫𝔦𝔠𝔬𝔡𝔢
""".replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r")

SPACES = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u2028\u2029" \
         "\u202f\u205f\u2060\u3000\ufeff"
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL",
                "'D", "'ſ", "’s", "''", "'x", "'r", "'l", "' s"]
EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "1️⃣", "❤️", "🧑🏿‍🚀", "😀", "\u200d", "\ufe0f"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_start", "|>", "<s>"]


def assigned_characters():
    """Those that every library here knows: what is a letter depends on its Unicode version."""
    known = unicodedata if unicodedata.unidata_version == "14.0.0" else unicodedata.ucd_3_2_0
    return [c for c in map(chr, range(0x110000)) if known.category(c) not in ("Cn", "Cs", "Co")]


class Strings:
    """A seeded stream of strings; each call of `next` is one of the kinds below, or a mixture."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.code = self._read_code()
        self.assigned = assigned_characters()
        self.kinds = [self.natural, self.source_code, self.digits, self.spaces, self.controls,
                      self.contractions, self.emoji, self.characters, self.run, self.ascii,
                      self.words, self.specials]

    @staticmethod
    def _read_code():
        paths = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:40]
        texts = [open(path, encoding="utf-8", errors="ignore", newline="").read() for path in paths]
        assert texts
        return "".join(texts)

    def _slice(self, text, longest):
        begin = self.random.randrange(len(text))
        return text[begin:begin + self.random.randint(1, longest)]

    def _some(self, choices, least, most):
        return "".join(self.random.choices(choices, k=self.random.randint(least, most)))

    def natural(self):
        return self._slice(NATURAL, 120)

    def source_code(self):
        return self._slice(self.code, 300)

    def digits(self):
        return self._some("0123456789٣४๒Ⅷ½²𝟘０ ,.", 1, 20)

    def spaces(self):
        run = self.random.choice(SPACES) * self.random.randint(1, 12)
        return self._some(["x", "7", "!", run] + list(SPACES), 1, 12)

    def controls(self):
        return self._some([chr(i) for i in range(0x20)] + ["\x7f", "\x80", "\x9f", "a", " "], 1, 12)

    def contractions(self):
        return self._some(CONTRACTIONS + ["I", "they", " we", "é", "5", " ", "."], 1, 8)

    def emoji(self):
        return self._some(EMOJI + ["a", " ", "!"], 1, 6)

    def characters(self):
        return self._some(self.assigned, 1, 12)

    def run(self):
        return self.random.choice("a =-\n\t.0é字👍ā") * self.random.randint(1, 400)

    def ascii(self):
        return self._some([chr(i) for i in range(0x20, 0x7f)], 1, 40)

    def words(self):
        letters = self._some("etaoinshrdluETA", 1, 9)
        return self._some([letters, " ", " the", "ing", ", ", " of"], 1, 20)

    def specials(self):
        return self._some(SPECIAL + ["user\n", " ", "x"], 1, 6)

    def next(self):
        if self.random.random() < 0.6:
            return self.random.choice(self.kinds)()
        return "".join(self.random.choice(self.kinds)() for _ in range(self.random.randint(2, 5)))


def make_oracle(vocabulary, pre_tokenizer, ignore_merges=False):
    oracle = tokenizers.Tokenizer(models.BPE(
        vocab=vocabulary.text_ids(), merges=vocabulary.merges, ignore_merges=ignore_merges))
    oracle.pre_tokenizer = pre_tokenizer
    return oracle


def oracles(vocabulary):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    plain_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    llama3 = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated")
    sequence = pre_tokenizers.Sequence
    return {
        "smollm": make_oracle(vocabulary, sequence([digits, byte_level])),
        "gpt-2": make_oracle(vocabulary, byte_level),
        "llama-bpe": make_oracle(vocabulary, sequence([llama3, plain_bytes]), ignore_merges=True),
    }


def every_character(characters, size=64):
    """Each one after a letter, a digit, a space and itself."""
    for begin in range(0, len(characters), size):
        yield "".join(f"a{c}1{c} {c}{c}" for c in characters[begin:begin + size])


def check_strings(tool, oracle, token_bytes, texts):
    failures = 0
    for text in texts:
        expected = oracle.encode(text, add_special_tokens=False).ids
        actual = tool.encode(text.encode())
        decoded = b"".join(token_bytes[i] for i in expected).decode(errors="replace")
        if actual != expected or tool.detokenize(actual) != decoded:
            failures += 1
            print(f"FAIL {text!r}\n  expected {expected}\n  actual   {actual}")
    return failures


def check_ids(tool, vocabulary, token_bytes, rng, count):
    """Random ids, which cut characters anywhere and need not form any text."""
    failures = 0
    split = [i for i, data in enumerate(token_bytes) if not _is_text(data)]
    for _ in range(count):
        pool = [rng.choice(split), rng.choice(split), rng.randrange(len(vocabulary.tokens))]
        ids = rng.choices(pool + rng.choices(split, k=3), k=rng.randint(1, 12))
        expected = b"".join(token_bytes[i] for i in ids).decode(errors="replace")
        if tool.detokenize(ids) != expected:
            failures += 1
            print(f"FAIL ids {ids}: {tool.detokenize(ids)!r}, expected {expected!r}")
    return failures


def _is_text(data):
    return "\ufffd" not in data.decode(errors="replace")


def check_invalid(tool):
    failures = 0
    for data, offset in [(b"\xff", 0), (b"ab\x80", 2), (b"caf\xc3", 3), (b"\xc0\xaf", 0),
                         ("é".encode() + b"\xed\xa0\x80", 2), (b"\xf4\x90\x80\x80", 0),
                         (b"12345678\xe2\x82", 8), (b"\xf0\x9f\x98 ok", 0)]:
        try:
            tool.encode(data)
            message = "accepted"
        except ValueError as error:
            message = str(error)
        if message != f"INVALID_ARGUMENT: text: invalid UTF-8 at byte {offset}":
            failures += 1
            print(f"FAIL {data!r}: {message}")
    return failures


def bytes_of_tokens(vocabulary):
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    hidden = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable}
    byte_of.update({chr(256 + i): b for i, b in enumerate(hidden)})
    return [bytes(byte_of[c] for c in token) if kind == 1 else b""
            for token, kind in zip(vocabulary.tokens, vocabulary.types)]


def main():
    tool_path, model = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20000
    vocabulary = Vocabulary(model)
    token_bytes = bytes_of_tokens(vocabulary)
    strings = Strings(SEED)
    failures = 0
    for pre, oracle in oracles(vocabulary).items():
        tool = TokenizeTool(tool_path, model, f"pre={pre}")
        strings_count = count if pre == "smollm" else count // 4
        failed = check_strings(tool, oracle, token_bytes,
                               (strings.next() for _ in range(strings_count)))
        failed += check_strings(tool, oracle, token_bytes, every_character(strings.assigned))
        failed += check_ids(tool, vocabulary, token_bytes, strings.random, count // 10)
        failed += check_invalid(tool)
        tool.close()
        print(f"{pre}: {strings_count} strings, {failed} failures")
        failures += failed
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
