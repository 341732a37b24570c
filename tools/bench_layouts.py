"""The row `layouts` of `./cairn bench`: coming back to contexts whose blocks lie in several places, beside every cut.

A layout is a row of runs, each in one tier. Cairn's plan has as its rivals the same code with one cut, at each eighth of the
context: computing what is missing before it and loading what lies behind (`--restore-policy cut`), so the cuts at both ends
are recompute-all and load-all. There is one server for each, and turn by turn they bring the session back one after the
other. The best of the cuts is what hindsight would have chosen.
"""

import contextlib
import pathlib
import random
import statistics
import tempfile
import time

from bench_contestants import BenchError
from bench_report import short
from bench_report import table as markdown
from bench_restore import (HINDSIGHT_GOAL, MEGABYTE, NEW, SESSION, TOKEN_BYTES, EIGHTHS, pool_bytes, prepare, serve_copy)
from bench_tiers import fresh_ids, seconds, token_ids

CONTEXT = 3072
BANDWIDTHS = (20, 60)  # of the disk, in MB/s
BLOCK = 16
CUTS = tuple(f"cut {eighth}/{EIGHTHS}" for eighth in range(EIGHTHS + 1))
POLICIES = (*CUTS, "cake", "cairn")
GAIN_GOAL, LOSS_GOAL, HINDSIGHT_P95_GOAL, WITHIN, WITHIN_GOAL = 1.3, 0.98, 1.10, 0.10, 0.95


def runs(*shares):
    """Of each (tier, share of the context where its run ends)."""
    return lambda blocks: [(tier, round(share * blocks)) for tier, share in shares]


def scattered(share, seed=5):
    """A share of the blocks, drawn at random, on disk, the others in the host's memory."""
    def layout(blocks):
        draw = random.Random(seed)
        chosen = set(draw.sample(range(blocks), round(share * blocks)))
        return [("disk" if block in chosen else "host", block + 1) for block in range(blocks)]
    return layout


# Each gives [(tier, the block where its run ends)], in order.
LAYOUTS = {
    "all disk": runs(("disk", 1)),
    "front half disk, back half host": runs(("disk", 1 / 2), ("host", 1)),
    "front half host, back half disk": runs(("host", 1 / 2), ("disk", 1)),
    "middle third disk, else host": runs(("host", 1 / 3), ("disk", 2 / 3), ("host", 1)),
    "middle eighth disk, else host": runs(("host", 7 / 16), ("disk", 9 / 16), ("host", 1)),
    "random 20 % disk, else host": scattered(0.2),
    "middle eighth nowhere, else disk": runs(("disk", 7 / 16), ("absent", 9 / 16), ("disk", 1)),
}


def merged(layout):
    """[(begin, end, tier)], runs of one tier as one."""
    result = []
    begin = 0
    for tier, end in layout:
        if result and result[-1][2] == tier:
            result[-1] = (result[-1][0], end, tier)
        elif end > begin:
            result.append((begin, end, tier))
        begin = end
    return result


def arrange(client, context, layout):
    """Puts each run into its tier; all blocks of the session are on the device before. From the back: what lies before a run
    is held there by another session while everything up to the end of the run leaves."""
    ids = token_ids(context)
    for begin, end, tier in reversed(layout):
        if begin > 0:
            client.create("held", ids[:begin * BLOCK], pinned=True)
            client.prefetch("held")
            deadline = time.monotonic() + 60
            while not client.is_idle("held"):
                if time.monotonic() > deadline:
                    raise BenchError("a prefetch of blocks that are on the device takes more than a minute")
                time.sleep(0.001)
        client.create("leaving", ids[:end * BLOCK])
        client.suspend("leaving", tier)
        client.delete("leaving")
        if begin > 0:
            client.delete("held")
    found = [name.removeprefix("TIER_").lower() for name in client.tiers_of(SESSION)]
    wanted = [tier for begin, end, tier in layout for _ in range(begin, end)]
    if found[:len(wanted)] != wanted:
        raise BenchError(f"the blocks lie where they should not: {found}, not {wanted}")


def flags_of(policy):
    if policy.startswith("cut"):
        eighth = int(policy.removeprefix("cut ").partition("/")[0])
        return "--restore-policy", "cut", "--restore-cut", round(100 * eighth / EIGHTHS)
    return "--restore-policy", policy


def come_back(client, context, layout):
    arrange(client, context, layout)
    usage = client.decode(SESSION, fresh_ids(NEW))
    client.truncate(SESSION, context)
    report = client.explain_last(SESSION)
    return {"took": seconds(usage.first_token_time), "predicted": seconds(report.predicted_time),
            "actual": seconds(report.actual_time)}


def serve_tiers(cairn, stack, context, seed, bandwidth, *flags):
    """A server on a copy of the folder `seed`, with a host pool that is copied from; the session is on the device."""
    client = serve_copy(cairn, stack, context, seed, *flags, "--host-memory", pool_bytes(context), "--host-blocks", "copied",
                        "--disk-bandwidth-limit", bandwidth * MEGABYTE)
    client.decode(SESSION, fresh_ids(NEW))
    client.truncate(SESSION, context)
    return client


def judge(samples):
    """Of each of a restore's turns: whether the prediction is within 10 % of what it took; and whether it is, or lies within
    what the turns took among themselves."""
    actual = [each["actual"] for each in samples]
    near = [abs(each["predicted"] / each["actual"] - 1) <= WITHIN for each in samples]
    covered = [is_near or min(actual) <= each["predicted"] <= max(actual) for is_near, each in zip(near, samples)]
    return near, covered


def verdict_on_predictions(points):
    """Of points with `near` and `covered`."""
    near = [each for point in points for each in point["near"]]
    covered = [each for point in points for each in point["covered"]]
    share = sum(near) / len(near)
    return (f"Of {len(near)} predictions {share:.0%} are within {WITHIN:.0%} of what the restore took (goal >= "
            f"{WITHIN_GOAL:.0%}{short(share >= WITHIN_GOAL)}), {sum(covered) / len(covered):.0%} are, or lie within what the same "
            f"restore took when it was repeated.")


def measure(cairn, context, bandwidths, repeat, say, layouts=LAYOUTS):
    points = []
    with tempfile.TemporaryDirectory(dir=cairn.build) as folder:  # on a disk, as /tmp may not be
        seed = pathlib.Path(folder) / "seed"
        say(f"layouts: a session of {context:,} tokens")
        prepare(cairn, seed, context)
        for bandwidth in bandwidths:
            with contextlib.ExitStack() as stack:
                clients = {}
                for policy in POLICIES:
                    clients[policy] = serve_tiers(cairn, stack, context, seed, bandwidth, *flags_of(policy))
                for name, layout in layouts.items():
                    place = merged(layout(context // BLOCK))
                    samples = {policy: [] for policy in POLICIES}
                    for turn in range(repeat):
                        for policy, client in clients.items():
                            samples[policy].append(come_back(client, context, place))
                        best = min(samples[policy][-1]["took"] for policy in CUTS)
                        say(f"layouts [{turn + 1}/{repeat}] {bandwidth} MB/s, {name}: cairn "
                            f"{samples['cairn'][-1]['took']:.3f} s, best cut {best:.3f} s")
                    points.append({"bandwidth": bandwidth, "layout": name, "samples": samples})
    return summarize(context, points)


def summarize(context, points):
    for point in points:
        medians = {policy: statistics.median(each["took"] for each in samples)
                   for policy, samples in point["samples"].items()}
        best = min(CUTS, key=medians.get)
        point |= {"medians": medians, "best_cut": best, "gain": medians[best] / medians["cairn"],
                  "hindsight": medians["cairn"] / medians[best],
                  "predicted": [each["predicted"] / each["actual"] for each in point["samples"]["cairn"]]}
        point["near"], point["covered"] = judge(point["samples"]["cairn"])
    return {"context": context, "new_tokens": NEW, "points": points}


def table(report):
    header = ["seconds to the first token", "load all", "compute all", "best cut", "cake", "cairn", "best cut ÷ cairn",
              "predicted ÷ actual"]
    lines = []
    for point in report["points"]:
        medians = point["medians"]
        best = point["best_cut"]
        lines.append([f"{point['bandwidth']} MB/s, {point['layout']}", f"{medians[CUTS[0]]:.3f}", f"{medians[CUTS[-1]]:.3f}",
                      f"{medians[best]:.3f} ({best.removeprefix('cut ')})", f"{medians['cake']:.3f}",
                      f"{medians['cairn']:.3f}", f"{point['gain']:.2f}×",
                      f"{min(point['predicted']):.2f} … {max(point['predicted']):.2f}"])
    return markdown(header, lines) + "\n\n" + verdict(report)


def verdict(report):
    """What the table comes to, beside the goals."""
    points = report["points"]
    ratios = sorted(point["hindsight"] for point in points)
    p95 = ratios[min(len(ratios) - 1, round(0.95 * len(ratios)))]
    gains = [point["gain"] for point in points]
    median = statistics.median(ratios)
    return (f"A session of {report['context']:,} tokens and {report['new_tokens']} new ones. cairn ÷ the best cut: median "
            f"{median:.2f} (goal <= {HINDSIGHT_GOAL}{short(median <= HINDSIGHT_GOAL)}), 95 % at most {p95:.2f} (goal <= "
            f"{HINDSIGHT_P95_GOAL:.2f}{short(p95 <= HINDSIGHT_P95_GOAL)}). Best cut ÷ cairn: at most {max(gains):.2f} (goal >= "
            f"{GAIN_GOAL}{short(max(gains) >= GAIN_GOAL)}), at least {min(gains):.2f} (goal >= "
            f"{LOSS_GOAL}{short(min(gains) >= LOSS_GOAL)}). {verdict_on_predictions(points)}")
