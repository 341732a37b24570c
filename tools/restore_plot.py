"""Draws what the row `restore` measured: seconds to the first token over the bandwidth of the tier, as SVG."""

import bisect
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 800, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 40, 50  # margins
# How each line is drawn: colour, width and dashes. Those that come later lie above.
STYLES = {
    "greedy": ("#c8a2c8", 1.5, ""),
    "threshold": ("#a0a0a0", 1.5, "2 3"),
    "cake": ("#2ca02c", 1.5, ""),
    "load_all": ("#1f77b4", 1.5, ""),
    "recompute_all": ("#ff7f0e", 1.5, ""),
    "best split in hindsight": ("#000000", 1.5, "7 4"),
    "cairn": ("#d62728", 3, ""),
}


TICKS = [digit * 10.0 ** power for power in range(-6, 7) for digit in (1, 2, 5)]


class LogAxis:
    """From values to pixels. It begins and ends with a tick, so that there are two at least."""

    def __init__(self, values, begin, end):
        first = bisect.bisect_right(TICKS, min(values)) - 1
        last = bisect.bisect_left(TICKS, max(values))
        if first == last:
            first, last = first - 1, last + 1
        self.ticks = TICKS[first:last + 1]
        self.begin, self.end = begin, end

    def at(self, value):
        low, high = self.ticks[0], self.ticks[-1]
        return self.begin + math.log(value / low) / math.log(high / low) * (self.end - self.begin)


def series(report):
    """{name: [(bandwidth, seconds)]}, in the order in which they are drawn."""
    points = sorted(report["points"], key=lambda point: point["bandwidth"])
    lines = {policy: [(point["bandwidth"], point["medians"][policy]) for point in points]
             for policy in points[0]["medians"]}
    lines["best split in hindsight"] = [(point["bandwidth"], point["split"]) for point in points]
    return {name: lines[name] for name in STYLES}


def text(x, y, words, anchor="middle", rotate=None):
    turn = f' transform="rotate({rotate} {x:.0f} {y:.0f})"' if rotate else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'


def line(x1, y1, x2, y2, colour, width=1, dashes=""):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}" '
            f'stroke-dasharray="{dashes}"/>')


def grid(across, up):
    parts = []
    for value in across.ticks:
        parts.append(line(across.at(value), TOP, across.at(value), HEIGHT - BOTTOM, "#e8e8e8"))
        parts.append(text(across.at(value), HEIGHT - BOTTOM + 16, f"{value:g}"))
    for value in up.ticks:
        parts.append(line(LEFT, up.at(value), WIDTH - RIGHT, up.at(value), "#e8e8e8"))
        parts.append(text(LEFT - 6, up.at(value) + 4, f"{value:g}", "end"))
    return parts


def curve(points, style, across, up):
    colour, width, dashes = style
    corners = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
    dots = [f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="{width + 1}" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-dasharray="{dashes}"/>', *dots]


def draw(report):
    lines = series(report)
    across = LogAxis([x for points in lines.values() for x, _ in points], LEFT, WIDTH - RIGHT)
    up = LogAxis([y for points in lines.values() for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = grid(across, up)
    for name, points in lines.items():
        parts += curve(points, STYLES[name], across, up)
    for row, name in enumerate(reversed(lines)):
        y = TOP + 10 + 20 * row
        parts.append(line(WIDTH - RIGHT + 12, y, WIDTH - RIGHT + 36, y, *STYLES[name]))
        parts.append(text(WIDTH - RIGHT + 42, y + 4, name, "start"))
    title = f"A session of {report['context']:,} tokens comes back from disk"
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, 24, title))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "bandwidth of the tier, MB/s"))
    parts.append(text(18, HEIGHT / 2, "seconds to the first token", rotate=-90))
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'font-family="sans-serif" font-size="12">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n')
