"""Draws what the row `restore` measured: seconds to the first token over the bandwidth of the tier."""

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

SUFFIXES = (".png", ".svg")
# How each line is drawn: colour, width and dashes. Those that come later lie above.
STYLES = {
    "greedy": ("#c8a2c8", 1.5, "-"),
    "threshold": ("#a0a0a0", 1.5, ":"),
    "cake": ("#2ca02c", 1.5, "-"),
    "load_all": ("#1f77b4", 1.5, "-"),
    "recompute_all": ("#ff7f0e", 1.5, "-"),
    "best split in hindsight": ("#000000", 1.5, "--"),
    "cairn": ("#d62728", 3, "-"),
}


def series(report):
    """{name: [(bandwidth, seconds)]}, in the order in which they are drawn."""
    points = sorted(report["points"], key=lambda point: point["bandwidth"])
    lines = {policy: [(point["bandwidth"], point["medians"][policy]) for point in points]
             for policy in points[0]["medians"]}
    lines["best split in hindsight"] = [(point["bandwidth"], point["split"]) for point in points]
    return {name: lines[name] for name in STYLES}


def figure(report):
    picture = Figure(figsize=(8, 4.8), layout="constrained")
    axes = picture.add_subplot(xscale="log", yscale="log", xlabel="bandwidth of the tier, MB/s",
                               ylabel="seconds to the first token",
                               title=f"A session of {report['context']:,} tokens comes back from disk")
    for name, points in series(report).items():
        colour, width, dashes = STYLES[name]
        axes.plot(*zip(*points), color=colour, linewidth=width, linestyle=dashes, marker="o", markersize=width + 2, label=name)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.grid(which="both", color="#e8e8e8")
    axes.set_axisbelow(True)
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    return picture


def draw(report, path):
    """Writes `path`, as the ending of its name says."""
    figure(report).savefig(path, dpi=150)
