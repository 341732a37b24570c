"""What `./cairn bench` makes of its samples: medians, ratios, fractions of the machine's peaks, and their tables."""

import re
import statistics

MODES = ("fast", "exact")


def summarize(rows, contestants, samples):
    """A dictionary for each row; samples[row name][contestant name] is a list of figures."""
    return [summarize_row(row, contestants, samples[row.name]) for row in rows]


def summarize_row(row, contestants, samples):
    medians = {name: statistics.median(values) for name, values in samples.items()}
    columns = {}  # column: (median, name of its best contestant)
    for contestant in contestants:
        if contestant.name in medians:
            entry = (medians[contestant.name], contestant.name)
            columns[contestant.column] = max(columns.get(contestant.column, entry), entry)
    others = [entry for column, entry in columns.items() if not column.startswith("cairn")]
    yardstick = max(others) if others else None
    ratios = {mode: medians[f"cairn {mode}"] / yardstick[0] for mode in MODES
              if yardstick and f"cairn {mode}" in medians}
    return {"row": row.name, "title": row.title, "unit": row.unit, "columns": columns, "medians": medians,
            "yardstick": yardstick and yardstick[1], "ratios": ratios, "goals": row.goals, "samples": samples}


def short(met):
    """What stands behind a goal that was not met."""
    return "" if met else ", short"


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def goals_text(summary):
    if summary["unit"] == "ms":
        return f"≤ {summary['goals']['fast']} ms"
    return " / ".join(f"{summary['goals'][mode]:.1f}" for mode in MODES)


def missed(summary):
    """The modes that are short of the row's goal."""
    if summary["unit"] == "ms":
        return [mode for mode in MODES if summary["medians"].get(f"cairn {mode}", 0) > summary["goals"][mode]]
    return [mode for mode in MODES if summary["ratios"].get(mode, 99) < summary["goals"][mode]]


def comparison_table(summaries):
    columns = list(dict.fromkeys(column for summary in summaries for column in summary["columns"]))
    header = ["tokens/s, medians", *columns, "fast ÷ best", "exact ÷ best", "at least", ""]
    lines = []
    for summary in summaries:
        unit = " ms" if summary["unit"] == "ms" else ""
        cells = [summary["title"]]
        for column in columns:
            value, name = summary["columns"].get(column, (None, ""))
            variant = re.sub(r".* (-fa \d)$| .*", r"\1", name) if name.startswith("llama") else ""
            cells.append("–" if value is None else f"{number(value)}{unit}{' ' + variant if variant else ''}")
        cells += [f"{summary['ratios'][mode]:.2f}" if mode in summary["ratios"] else "–" for mode in MODES]
        short = missed(summary)
        cells += [goals_text(summary), "short: " + ", ".join(short) if short else ""]
        lines.append(cells)
    return table(header, lines)


def table(header, lines):
    """Markdown, aligned so that it reads as plain text too."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    rule = ["-" * max(width, 3) for width in widths]

    def draw(cells):
        first, *rest = [cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(cells, widths))]
        return "| " + " | ".join([first, *rest]) + " |"

    return "\n".join([draw(header), "| " + " | ".join(rule) + " |", *map(draw, lines)])


# The machine's peaks, and what is reached of them.

def read_kernel_bench(output):
    """{"fma_gflops", "stream_gbytes", "products": {name: {"rows": {M: / FMA peak}, "stream": / stream at M = 1}}}"""
    peaks = re.search(r"FMA peak ([\d.]+) GFLOP/s, stream ([\d.]+) GB/s", output)
    counts = re.search(r"at M =((?:\s+\d+)+)", output)
    products = {}
    for line in output.splitlines():
        found = re.match(r"(\S+)\s+(\d+) x (\d+)\s+(fast|exact)(.*)$", line)
        if found:
            *shares, stream = re.findall(r"\(([\d.]+)\)", found[5])
            name = f"{found[1]} {found[2]} x {found[3]} {found[4]}"
            products[name] = {"rows": dict(zip(counts[1].split(), map(float, shares))), "stream": float(stream)}
    return {"fma_gflops": float(peaks[1]), "stream_gbytes": float(peaks[2]), "products": products}


def read_attention_bench(output):
    """{"decode batch 1 rows 1 at 7999": {"fma": share of the peak, "stream": share of the peak}, ...}"""
    pattern = r"(decode|prefill)\s+(batch \d+) rows\s+(\d+) at\s+(\d+):.*GFLOP/s\s+(\d+) %.*GB/s\s+(\d+) %"
    return {f"{found[1]} {found[2]} rows {found[3]} at {found[4]}":
            {"fma": int(found[5]) / 100, "stream": int(found[6]) / 100}
            for found in re.finditer(pattern, output)}


def engine_roofline(summaries, rows, costs, peaks):
    """For each row and mode, which peak bounds it and what share of it the engine reaches end to end.

    Prefill: the float32 operations that the model asks for, beside the FMA peak (int8 products may pass it). Decoding:
    the bytes of weights and KV that a step must read, beside the read bandwidth.
    """
    shares = []
    for summary, row in zip(summaries, rows):
        for mode in MODES:
            rate = summary["medians"].get(f"cairn {mode}")
            if rate is None or row.kind == "cached":
                continue
            if row.kind == "prefill":
                flop = costs["flop_per_token"] + costs["attention_flop_per_position"] * (row.tokens + 1) / 2
                reached, peak, unit = rate * flop * 1e-9, peaks["fma_gflops"], "GFLOP/s"
            else:
                mean_context = row.tokens + 16  # of the 32 tokens that are decoded
                step = costs["weight_bytes"] + row.streams * mean_context * costs["kv_bytes_per_token"]
                reached, peak, unit = rate / row.streams * step * 1e-9, peaks["stream_gbytes"], "GB/s"
            shares.append({"row": row.name, "title": row.title, "mode": mode, "rate": rate, "reached": reached,
                           "peak": peak, "unit": unit, "share": reached / peak})
    return shares


def roofline_table(shares):
    lines = [[f"{each['title']}, {each['mode']}", number(each["rate"]), f"{number(each['reached'])} {each['unit']}",
              f"{number(each['peak'])} {each['unit']}", f"{each['share']:.2f}"] for each in shares]
    return table(["Cairn alone", "tokens/s", "needs", "the machine's peak", "share"], lines)


# Over gRPC, and scaling.

def overhead(events, row_count):
    """Of the time of consecutive steps with so many rows, the share that is not the model's: planning, sampling,
    committing, delivering, and what lies between two steps. `events` are those of a trace of cairnd."""
    steps = []
    for event in events:
        if event["name"] == "step":
            steps.append(event)
        elif event["name"] == "forward":
            steps[-1]["forward"] = event["dur"]
    time, inside = 0.0, 0.0
    for step, following in zip(steps, steps[1:]):
        if step["args"]["rows"] == following["args"]["rows"] == row_count:
            time += following["ts"] - step["ts"]
            inside += step["forward"]
    return 1 - inside / time


def grpc_table(report):
    """report[mode][title]: {"engine": tokens/s, "client": tokens/s, "overhead": share of the served steps' time}"""
    lines = [[f"{title}, {mode}", number(rates["engine"]), number(rates["client"]),
              f"{rates['client'] / rates['engine']:.2f}", f"{rates['overhead']:.1%}"]
             for mode, titles in report.items() for title, rates in titles.items()]
    return table(["tokens/s", "engine", "over gRPC", "ratio", "of a step outside the model"], lines)


def durable_table(report):
    """report[mode][title]: {"none", "os", "sync": tokens/s}"""
    lines = [[f"{title}, {mode}", *(number(rate) for rate in rates.values()),
              *(f"{rates[level] / rates['none']:.2f}" for level in ("os", "sync"))]
             for mode, titles in report.items() for title, rates in titles.items()]
    return table(["tokens/s over gRPC, --durability", "none", "os", "sync", "os ÷ none", "sync ÷ none"], lines)


def start_table(report):
    """report[mode]: {"seconds", "resident", "weights", "pool"}"""
    lines = [[mode, f"{each['seconds']:.2f} s", *(f"{each[name] / 1e6:,.0f} MB" for name in ("weights", "pool")),
              f"{each['resident'] / 1e6:,.0f} MB", f"{(each['resident'] - each['weights'] - each['pool']) / 1e6:,.0f} MB"]
             for mode, each in report.items()]
    return table(["cairnd", "start to ready", "weights", "full pool", "resident", "beyond both"], lines)


def fit_line(contexts, seconds):
    """(a, b, largest relative deviation) of seconds = a + b * context, with least squares of relative errors."""
    s = sx = sy = sxx = sxy = 0.0
    for x, y in zip(contexts, seconds):
        w = 1 / (y * y)
        s, sx, sy, sxx, sxy = s + w, sx + w * x, sy + w * y, sxx + w * x * x, sxy + w * x * y
    b = (s * sxy - sx * sy) / (s * sxx - sx * sx)
    a = (sy - b * sx) / s
    return a, b, max(abs(a + b * x - y) / y for x, y in zip(contexts, seconds))


def scaling_table(scaling):
    """scaling[mode]: {"contexts": {context: ms a token}, "a_ms", "b_us", "deviation"}"""
    contexts = list(next(iter(scaling.values()))["contexts"])
    lines = [[mode, *(f"{each['contexts'][context]:.2f}" for context in contexts),
              f"{each['a_ms']:.2f} ms + {each['b_us']:.3f} µs · context", f"{each['deviation']:.1%}"]
             for mode, each in scaling.items()]
    return table(["decode, ms a token at", *(f"{context:,}" for context in contexts), "fit", "deviation"], lines)


def threads_table(threads):
    """threads[mode][title]: {1: tokens/s, 2: tokens/s}"""
    lines = [[f"{title}, {mode}", *(number(rate) for rate in rates.values()), f"{rates[2] / rates[1]:.2f}"]
             for mode, titles in threads.items() for title, rates in titles.items()]
    return table(["tokens/s", "1 thread", "2 threads", "ratio"], lines)
