"""The row `restore` of `./cairn bench`: coming back to a long context from a disk of limited bandwidth, under each policy.

For each bandwidth there is one server a policy, all on copies of the same sessions. Turn by turn they bring the session
back one after the other, so that all of them see the same weather. What the best split in hindsight would take is
worked out from what was measured: recomputing beginnings of the context, at eighths of it, and loading all of it.
"""

import contextlib
import pathlib
import shutil
import statistics
import tempfile

from bench_client import SessionClient
from bench_contestants import BenchError
from bench_report import short
from bench_report import table as markdown
from bench_tiers import drop_page_cache, fresh_ids, seconds, token_ids

POLICIES = ("load_all", "recompute_all", "greedy", "threshold", "cake", "cairn")
PURE = ("load_all", "recompute_all")
BANDWIDTHS = (2, 5, 10, 20, 35, 60, 120, 600)  # of the disk tier, in MB/s
QUICK_BANDWIDTHS = (10, 35, 120)
CONTEXT, CONTEXT_MIN, CONTEXT_MAX = 6144, 512, 7680  # tokens of the session that comes back
NEW = 32  # tokens that are new to it then
EIGHTHS = 8
TOKEN_BYTES = 23040  # of KV, in the default model
MEGABYTE = 1_000_000
SESSION = "long"
BOUND_SHARE_GOAL, HINDSIGHT_GOAL = 0.85, 1.05


def pool_bytes(context):
    """A pool that the session fits in twice."""
    return f"{2 * (context + 256) * TOKEN_BYTES // (1 << 20) + 1}MiB"


def serve(cairn, stack, context, folder, *flags):
    """A client of a new server on `folder`, until `stack` is closed."""
    server = stack.enter_context(cairn.server("--disk-dir", folder, "--disk-memory", "1GiB", *flags,
                                              device_memory=pool_bytes(context)))
    return stack.enter_context(SessionClient(server.address))


def serve_copy(cairn, stack, context, seed, *flags):
    """The same on a copy of the folder `seed`, which is gone then."""
    copy = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=seed.parent))) / "data"
    shutil.copytree(seed, copy)
    return serve(cairn, stack, context, copy, *flags)


def prepare(cairn, folder, context):
    """A data directory in which the session's blocks are on disk."""
    with contextlib.ExitStack() as stack:
        client = serve(cairn, stack, context, folder, "--recalibrate")
        client.create(SESSION)
        client.decode(SESSION, token_ids(context))
        client.truncate(SESSION, context)
        client.suspend(SESSION, "disk")


def come_back(client, context):
    """(seconds to the first token of the suspended session, the share of the context that was loaded); then it is as
    before."""
    client.suspend(SESSION, "disk")
    drop_page_cache()
    usage = client.decode(SESSION, fresh_ids(NEW))
    client.truncate(SESSION, context)
    return seconds(usage.first_token_time), usage.disk_tokens / context


def compute_beginnings(client, context):
    """Seconds to the first token of prompts of 1/8, 2/8 ... of the context, each computed from nothing."""
    times = []
    for eighth in range(1, EIGHTHS + 1):
        name = f"eighth-{eighth}"
        client.create(name)
        usage = client.decode(name, token_ids(eighth * context // EIGHTHS, seed=10 + eighth))
        client.delete(name)
        times.append(seconds(usage.first_token_time))
    return times


def measure_at(cairn, seed, context, bandwidth, repeat, say):
    """{policy: {"samples": [seconds], "loaded": [shares]}}, and what computing beginnings takes meanwhile."""
    figures = {policy: {"samples": [], "loaded": []} for policy in POLICIES}
    with contextlib.ExitStack() as stack:
        clients = {}
        for policy in POLICIES:
            clients[policy] = serve_copy(cairn, stack, context, seed, "--restore-policy", policy,
                                         "--disk-bandwidth-limit", bandwidth * MEGABYTE)
            come_back(clients[policy], context)  # pages of the pool come into being, and costs are learned
        for turn in range(repeat):
            for policy, client in clients.items():
                took, loaded = come_back(client, context)
                say(f"restore [{turn + 1}/{repeat}] {bandwidth} MB/s, {policy}: {took:.3f} s, {loaded:.0%} loaded")
                figures[policy]["samples"].append(took)
                figures[policy]["loaded"].append(loaded)
        beginnings = compute_beginnings(clients["recompute_all"], context)
    if any(figures["recompute_all"]["loaded"]):
        raise BenchError("recompute_all has loaded blocks: the policies are not what they say")
    return figures, beginnings


def measure(cairn, context, bandwidths, repeat, say):
    points = []
    beginnings = []
    with tempfile.TemporaryDirectory(dir=cairn.build) as folder:  # on a disk, as /tmp may not be
        seed = pathlib.Path(folder) / "seed"
        say(f"restore: a session of {context:,} tokens")
        prepare(cairn, seed, context)
        for bandwidth in bandwidths:
            figures, times = measure_at(cairn, seed, context, bandwidth, repeat, say)
            points.append({"bandwidth": bandwidth, "policies": figures})
            beginnings.append(times)
    return summarize(context, points, beginnings)


def summarize(context, points, beginnings):
    """Adds medians and ratios to each of `points`; of `beginnings`, one list for each of them, only the shape counts."""
    computed = [statistics.median(times) for times in zip(*beginnings)]
    shape = [time / computed[-1] for time in computed]
    for point in points:
        medians = {policy: statistics.median(of["samples"]) for policy, of in point["policies"].items()}
        pure = min(medians[policy] for policy in PURE)
        split = min(pure, best_split(medians["load_all"], [share * medians["recompute_all"] for share in shape]))
        point |= {
            "medians": medians,
            "loaded": statistics.median(point["policies"]["cairn"]["loaded"]),
            "best_rival": min((time, policy) for policy, time in medians.items() if policy != "cairn")[1],
            "hindsight": medians["cairn"] / min(time for policy, time in medians.items() if policy != "cairn"),
            "split": split,
            "gain": pure / medians["cairn"],
            "gain_bound": pure / split,
        }
    return {"context": context, "new_tokens": NEW, "beginnings": computed, "points": points}


def best_split(load_all, computed):
    """Seconds until both sides are there, when a beginning of the context is recomputed while the rest of it is loaded
    and neither side hinders the other: where `computed`, at eighths, crosses what is left of `load_all`. They do cross:
    after the last eighth nothing is left."""
    share, time = 0.0, 0.0
    for eighth, next_time in enumerate(computed, 1):
        next_share = eighth / len(computed)
        if next_time >= load_all * (1 - next_share):
            rise = (next_time - time) / (next_share - share)
            meeting = (load_all - time + rise * share) / (rise + load_all)
            return load_all * (1 - meeting)
        share, time = next_share, next_time


def table(report):
    header = ["seconds to the first token", *POLICIES, "loaded", "best split", "÷ best rival", "gain", "at most"]
    lines = []
    for point in report["points"]:
        times = [f"{point['medians'][policy]:.3f}" for policy in POLICIES]
        lines.append([f"{point['bandwidth']:,} MB/s", *times, f"{point['loaded']:.0%}", f"{point['split']:.3f}",
                      f"{point['hindsight']:.2f} ({point['best_rival']})", f"{point['gain']:.2f}×",
                      f"{point['gain_bound']:.2f}×"])
    return markdown(header, lines) + "\n\n" + verdict(report)


def verdict(report):
    """What the table comes to, beside the goals."""
    points = report["points"]
    ratios = sorted(point["hindsight"] for point in points)
    widest = max(points, key=lambda point: point["gain_bound"])
    share = widest["gain"] / widest["gain_bound"]
    median = statistics.median(ratios)
    return (f"A session of {report['context']:,} tokens and {report['new_tokens']} new ones. cairn ÷ the best rival measured: "
            f"median {median:.2f} (goal <= {HINDSIGHT_GOAL}{short(median <= HINDSIGHT_GOAL)}), worst "
            f"{ratios[-1]:.2f}. Where a split can gain most, at {widest['bandwidth']:,} MB/s: {widest['gain']:.2f}× faster than "
            f"the better pure plan, {share:.0%} of the {widest['gain_bound']:.2f}× that the measured curves allow (goal >= "
            f"{BOUND_SHARE_GOAL:.0%}{short(share >= BOUND_SHARE_GOAL)}).")
