"""The row `predictions` of `./cairn bench`: what Cairn predicts of its restores over what they take.

For each context, bandwidth of the disk and layout the session comes back a few times. Two shares are told: of predictions within
10 % of what the restore took, and of those that are, or lie within what the same restore's turns took among themselves.
"""

import contextlib
import pathlib
import statistics
import tempfile

from bench_layouts import BLOCK, LAYOUTS, come_back, judge, merged, serve_tiers, verdict_on_predictions
from bench_report import table as markdown
from bench_restore import prepare

CONTEXTS = (512, 1536, 3072, 6144)
BANDWIDTHS = (2, 10, 35, 120, 600)


def measure(cairn, contexts, bandwidths, repeat, say):
    points = []
    for context in contexts:
        with tempfile.TemporaryDirectory(dir=cairn.build) as folder:  # on a disk, as /tmp may not be
            seed = pathlib.Path(folder) / "seed"
            say(f"predictions: a session of {context:,} tokens")
            prepare(cairn, seed, context)
            for bandwidth in bandwidths:
                with contextlib.ExitStack() as stack:
                    client = serve_tiers(cairn, stack, context, seed, bandwidth)
                    for name, layout in LAYOUTS.items():
                        place = merged(layout(context // BLOCK))
                        samples = [come_back(client, context, place) for _ in range(repeat)]
                        say(f"predictions: {context:,} tokens, {bandwidth} MB/s, {name}: predicted ÷ actual " +
                            " ".join(f"{each['predicted'] / each['actual']:.2f}" for each in samples))
                        points.append({"context": context, "bandwidth": bandwidth, "layout": name, "samples": samples})
    return summarize(points)


def summarize(points):
    for point in points:
        point["ratios"] = [each["predicted"] / each["actual"] for each in point["samples"]]
        point["near"], point["covered"] = judge(point["samples"])
    return {"points": points}


def table(report):
    """A row a context, a column a bandwidth: the share of predictions within 10 %, and the ratio's median."""
    points = report["points"]
    bandwidths = sorted({point["bandwidth"] for point in points})

    def cell(context, bandwidth):
        chosen = [point for point in points if (point["context"], point["bandwidth"]) == (context, bandwidth)]
        near = [each for point in chosen for each in point["near"]]
        ratios = [each for point in chosen for each in point["ratios"]]
        return f"{sum(near) / len(near):.0%} ({statistics.median(ratios):.2f})"

    lines = [[f"{context:,} tokens", *(cell(context, bandwidth) for bandwidth in bandwidths)]
             for context in sorted({point["context"] for point in points})]
    worst = max(points, key=lambda point: abs(statistics.median(point["ratios"]) - 1))
    return (markdown(["predictions within 10 % (median of predicted ÷ actual)", *(f"{each} MB/s" for each in bandwidths)], lines) +
            f"\n\n{verdict_on_predictions(points)} The worst: {worst['context']:,} tokens at {worst['bandwidth']} MB/s, {worst['layout']}: "
            f"{statistics.median(worst['ratios']):.2f}.")
