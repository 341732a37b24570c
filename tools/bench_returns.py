"""The row `returns` of `./cairn bench`: eight sessions that want to come back from a slow disk at once, while four streams
decode. There is one server for each policy; turn by turn each has its eight sessions come back, all asked for together.

A stream slows down as its context grows. So each server first lets the streams decode alone: what they keep of their pace is
the time in which they would have decoded the same tokens alone, over the time in which they did.
"""

import bisect
import concurrent.futures
import contextlib
import pathlib
import statistics
import tempfile
import threading
import time

import grpc

from bench_contestants import BenchError
from bench_report import short
from bench_report import table as markdown
from bench_restore import MEGABYTE, NEW, serve, serve_copy
from bench_tiers import fresh_ids, seconds, token_ids

POLICIES = ("load_all", "cake", "cairn")
BANDWIDTH = 20  # of the disk, in MB/s
# Tokens of the sessions, in the order in which they are asked for: long ones before short ones and behind them.
CONTEXTS = (1536, 512, 1024, 2048, 256, 1280, 768, 1024)
STREAMS, STREAM_CONTEXT, STREAM_TOKENS = 4, 64, 7000
ALONE = 20.0  # seconds for which the streams are watched alone
GAIN_GOAL, PACE_GOAL = 1.3, 0.8


def names():
    return [f"session-{i}" for i in range(len(CONTEXTS))]


class Streams:
    """Sessions that decode for as long as this lives; `counts[i]` tokens were there at `times[i]`."""

    def __init__(self, client):
        self.client = client
        self.counts, self.times = [0], [time.monotonic()]
        self.lock = threading.Lock()

    def __enter__(self):
        self.names = [f"stream-{i}" for i in range(STREAMS)]
        for i, name in enumerate(self.names):
            self.client.create(name, token_ids(STREAM_CONTEXT, seed=100 + i))
        self.calls = [self.client.decode_call(name, count=STREAM_TOKENS) for name in self.names]
        self.threads = [threading.Thread(target=self.read, args=(call,)) for call in self.calls]
        for thread in self.threads:
            thread.start()
        return self

    def read(self, call):
        with contextlib.suppress(grpc.RpcError):  # it is cancelled in the end
            for message in call:
                with self.lock:
                    self.counts.append(self.counts[-1] + len(message.token_ids))
                    self.times.append(time.monotonic())

    def count(self):
        return self.counts[-1]

    def __exit__(self, *_):
        for call in self.calls:
            call.cancel()
        for thread in self.threads:
            thread.join()
        for name in self.names:
            self.client.delete(name)


def prepare(cairn, folder):
    with contextlib.ExitStack() as stack:
        client = serve(cairn, stack, sum(CONTEXTS), folder, "--recalibrate")
        for i, (name, context) in enumerate(zip(names(), CONTEXTS)):
            client.create(name)
            client.decode(name, token_ids(context, seed=i))
            client.truncate(name, context)
            client.suspend(name, "disk")


def watch_alone(client):
    """(counts, times) of streams that have the server to themselves."""
    with Streams(client) as streams:
        time.sleep(ALONE)
        return list(streams.counts), list(streams.times)


def seconds_between(counts, times, first, last):
    """From the time at which there were `first` tokens to that of `last`."""
    return times[bisect.bisect_left(counts, last)] - times[bisect.bisect_left(counts, first)]


def come_back(client, alone):
    """{"took": seconds to the first token of each session, "pace": what the streams keep of theirs meanwhile}."""
    for name in names():
        client.suspend(name, "disk")
    with Streams(client) as streams, concurrent.futures.ThreadPoolExecutor(len(CONTEXTS)) as pool:
        time.sleep(1)
        first, begin = streams.count(), time.monotonic()
        returns = [pool.submit(client.decode, name, fresh_ids(NEW)) for name in names()]
        took = [seconds(each.result().first_token_time) for each in returns]
        last, end = streams.count(), time.monotonic()
        if any(not thread.is_alive() for thread in streams.threads):
            raise BenchError("a stream ended before the sessions were back")
    for name, context in zip(names(), CONTEXTS):
        client.truncate(name, context)
    if last > alone[0][-1]:
        raise BenchError("the streams were watched alone for too short a time")
    return {"took": took, "pace": seconds_between(*alone, first, last) / (end - begin)}


def measure(cairn, repeat, say):
    samples = {policy: [] for policy in POLICIES}
    with tempfile.TemporaryDirectory(dir=cairn.build) as folder, contextlib.ExitStack() as stack:
        seed = pathlib.Path(folder) / "seed"
        say(f"returns: {len(CONTEXTS)} sessions of {sum(CONTEXTS):,} tokens")
        prepare(cairn, seed)
        clients = {}
        for policy in POLICIES:
            clients[policy] = serve_copy(cairn, stack, sum(CONTEXTS), seed, "--restore-policy", policy,
                                         "--disk-bandwidth-limit", BANDWIDTH * MEGABYTE)
        alone = {policy: watch_alone(client) for policy, client in clients.items()}
        for turn in range(repeat):
            for policy, client in clients.items():
                samples[policy].append(come_back(client, alone[policy]))
                last = samples[policy][-1]
                say(f"returns [{turn + 1}/{repeat}] {policy}: mean {statistics.mean(last['took']):.3f} s, the streams keep "
                    f"{last['pace']:.0%}")
    return summarize(samples)


def summarize(samples):
    policies = {}
    for policy, turns in samples.items():
        policies[policy] = {"mean": statistics.median(statistics.mean(turn["took"]) for turn in turns),
                            "last": statistics.median(max(turn["took"]) for turn in turns),
                            "pace": statistics.median(turn["pace"] for turn in turns)}
    return {"contexts": CONTEXTS, "bandwidth": BANDWIDTH, "policies": policies, "samples": samples,
            "gain": policies["load_all"]["mean"] / policies["cairn"]["mean"]}


def table(report):
    lines = [[policy, f"{of['mean']:.3f}", f"{of['last']:.3f}", f"{of['pace']:.0%}"]
             for policy, of in report["policies"].items()]
    pace = report["policies"]["cairn"]["pace"]
    gain = report["gain"]

    return (markdown(["seconds to the first token", "mean", "last", "streams keep"], lines) +
            f"\n\n{len(report['contexts'])} sessions of {sum(report['contexts']):,} tokens come back together from a disk of "
            f"{report['bandwidth']} MB/s beside {STREAMS} streams. load_all ÷ cairn, means: {gain:.2f} (goal >= "
            f"{GAIN_GOAL}{short(gain >= GAIN_GOAL)}); beside cairn the streams keep {pace:.0%} of their rate (goal >= "
            f"{PACE_GOAL:.0%}{short(pace >= PACE_GOAL)}).")
