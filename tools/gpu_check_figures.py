"""The figures of tools/gpu_check.py: read from what the benches print, held against peaks and goals, and drawn as one table."""

import json

COPIES = "copies of device memory, reads and writes"
DENSE = "cuBLAS, float16"
DECODED_TOKENS = 32  # by a stream in one case of the engine's bench, unless the case says


def json_lines(output):
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:  # the program was stopped in the middle of it
                pass


class Figures:
    """Everything measured so far, in the order in which it came."""

    def __init__(self, judged):
        self.judged = judged  # whether goals count
        self.all = []
        self.peaks = {}  # "bytes" and "operations" a second

    def read(self, step, output):
        costs = {}
        for line in json_lines(output):
            if "weight_bytes" in line:
                costs = line
            elif "case" in line:
                self.add_case(step, line, costs)
            elif "name" in line:
                self.add(step, **line)

    def add(self, step, name, value, unit, ratio=None, of="", at_least=None, at_most=None):
        if name == COPIES:
            self.peaks["bytes"] = value * 1e9
        elif name.startswith(DENSE):
            self.peaks["operations"] = value * 1e12
        met = None
        if self.judged and at_least is not None:
            met = ratio is not None and ratio >= at_least
        elif self.judged and at_most is not None:
            met = value <= at_most
        self.all.append({"step": step, "name": name, "value": value, "unit": unit, "ratio": ratio, "of": of,
                         "at_least": at_least, "at_most": at_most, "met": met})

    def add_case(self, step, case, costs):
        """Of the engine's bench: beside the time that reading, or multiplying, takes at the peaks."""
        kind, context, streams, rate = case["case"], case["context"], case["streams"], case["tokens_per_s"]
        if kind == "decode":
            name = f"decode, {streams} x at {context}"
            read = costs["weight_bytes"] + streams * (context + DECODED_TOKENS / 2) * costs["kv_bytes_per_token"]
            ratio, of = self.share("bytes", read * rate / streams), "reads at the copies' rate"
        else:
            name = f"{kind}, {context} tokens"
            flop = costs["flop_per_token"] + costs["attention_flop_per_position"] * context / 2
            ratio, of = self.share("operations", flop * rate), "cuBLAS"
        self.add(step, name, rate, "tokens/s", ratio, of)
        if step.endswith(" fast"):
            self.add_price(step.removesuffix(" fast"), name, rate)

    def share(self, peak, value):
        return value / self.peaks[peak] if peak in self.peaks else None

    def add_price(self, title, name, fast):
        for exact in self.all:
            if exact["step"] == f"{title} exact" and exact["name"] == name:
                self.add(title, f"exact / fast, {name}", exact["value"] / fast, "")

    def short(self):
        return [figure for figure in self.all if figure["met"] is False]

    def table(self):
        rows = [("step", "figure", "measured", "ratio", "goal", "")]
        for figure in self.all:
            ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.2f} of {figure['of']}"
            goal = ""
            if figure["at_least"] is not None:
                goal = f">= {figure['at_least']:.2f}"
            elif figure["at_most"] is not None:
                goal = f"<= {figure['at_most']:g} {figure['unit']}"
            verdict = {True: "ok", False: "short", None: ""}[figure["met"]]
            rows.append((figure["step"], figure["name"], f"{figure['value']:,.4g} {figure['unit']}".strip(), ratio, goal,
                         verdict))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(cell.rjust(width) if i in (2, 4) else cell.ljust(width)
                                   for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)
