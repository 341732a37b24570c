"""The row `tiers` of `./cairn bench`: coming back to a long context from each tier, beside what the disk and llama.cpp's
slots take for the same tokens on the same file system, and what restoring does to those who decode meanwhile."""

import concurrent.futures
import contextlib
import itertools
import json
import mmap
import os
import pathlib
import random
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

from bench_client import SessionClient
from bench_contestants import BenchError, run
from bench_report import short

CONTEXT = 6144  # tokens of the session that comes back
NEW = 2  # tokens that are new to it then
FIRST_ID, LAST_ID = 1000, 40000  # token ids of plain text in the default model
POOL = "320MiB"  # which the session fits in twice
SMALL_POOL = "64MiB"  # which it does not fit in
PIECE = 1 << 20  # bytes of one raw read
DECODED = 64
CLIENTS = 8
SESSIONS = 400
SEEDS = itertools.count(1000)
RESTORE_SECONDS = 0.7  # what a restore beside others takes at most, on a disk of 250 MB/s


def token_ids(count, seed=1):
    draw = random.Random(seed)
    return [draw.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def come_back(client, session, tier):
    """Milliseconds to the first token of a suspended session, and its usage; the session is as before then."""
    client.suspend(session, tier)
    drop_page_cache()
    usage = client.decode(session, fresh_ids(NEW))
    client.truncate(session, CONTEXT)
    return seconds(usage.first_token_time) * 1e3, usage


def fresh_ids(count):
    """Ids that nobody has computed behind anything: other ones each time."""
    return token_ids(count, seed=next(SEEDS))


def seconds(duration):
    return duration.ToNanoseconds() / 1e9


def drop_page_cache():
    """As far as this user may: what the disk tier reads does not go through it anyway."""
    os.sync()
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


def raw_read_ms(folder, size):
    """Reading a file of `size` bytes in order, past the page cache."""
    path = pathlib.Path(folder) / "raw"
    buffer = mmap.mmap(-1, PIECE)  # on a page boundary, as O_DIRECT wants it
    buffer.write(os.urandom(PIECE))
    count = -(-size // PIECE)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT), "wb", buffering=0) as file:
        for _ in range(count):
            file.write(buffer)
    drop_page_cache()
    with open(os.open(path, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as file:
        begin = time.monotonic()
        for _ in range(count):
            file.readinto(buffer)
        elapsed = time.monotonic() - begin
    path.unlink()
    return elapsed * 1e3 * size / (count * PIECE)


class LlamaServer:
    """llama-server with one slot that can be saved and restored."""

    def __init__(self, home, model, threads, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [home / "bin/llama-server", "-m", model, "-t", threads, "-c", 8192, "-np", 1, "--port", self.port,
                   "--slot-save-path", folder, "--host", "127.0.0.1", "--no-webui"]
        if not pathlib.Path(command[0]).is_file():
            raise BenchError(f"{command[0]} is missing: run ./cairn bench --setup")
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                if json.load(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health"))["status"] == "ok":
                    return
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise BenchError("llama-server did not start")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=30)

    def post(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer = json.load(answer)
        return (time.monotonic() - begin) * 1e3, answer

    def complete(self, ids):
        return self.post("/completion", prompt=ids, n_predict=1, cache_prompt=True, id_slot=0, temperature=0)

    def measure(self):
        ids = token_ids(CONTEXT)
        prefill, _ = self.complete(ids)
        self.post("/slots/0?action=save", filename="slot")
        figures = {"prefill": prefill}
        for name in ("warm", "cold"):
            self.post("/slots/0?action=erase")
            if name == "cold":
                drop_page_cache()
            restore, _ = self.post("/slots/0?action=restore", filename="slot")
            complete, answer = self.complete(ids + token_ids(NEW, seed=2))
            if answer["timings"]["prompt_n"] > 2 * NEW + 1:
                raise BenchError(f"llama-server did not use the restored slot: {answer['timings']}")
            figures[name] = restore + complete
        return figures


def come_back_figures(cairn, folder):
    """Milliseconds to the first token, from each tier, when all of it comes from there. Each has brought the session back once
    before: pages of a pool come into being when they are first used, which takes longer than copying them."""
    figures = {}
    for how in ("in-place", "copied"):
        with cairn.server("--host-memory", POOL, "--host-blocks", how, "--disk-dir", f"{folder}/{how}", "--disk-memory",
                          "1GiB", "--restore-policy", "load_all", device_memory=POOL) as server, SessionClient(server.address) as client:
            client.create("long")
            usage = client.decode("long", token_ids(CONTEXT))
            client.truncate("long", CONTEXT)
            figures["computed"] = seconds(usage.first_token_time) * 1e3
            for tier in ("host", "disk"):
                come_back(client, "long", tier)
                took, usage = come_back(client, "long", tier)
                found = {"host": usage.host_tokens, "disk": usage.disk_tokens}[tier]
                if found < CONTEXT - 32:
                    raise BenchError(f"only {found} of {CONTEXT} tokens came back from {tier}: {usage}")
                figures[tier if tier == "disk" else f"host, {how}"] = took
    return figures


def beyond_the_pool(cairn):
    """Decoding a context that does not fit the device, over decoding it where it does."""
    rates = {}
    for name, device, host in (("fits", POOL, "1MiB"), ("beyond", SMALL_POOL, POOL)):
        with cairn.server("--host-memory", host, device_memory=device) as server, SessionClient(server.address) as client:
            client.create("long")
            usage = client.decode("long", token_ids(CONTEXT), DECODED)
            rates[name] = (DECODED - 1) / seconds(usage.decode_time)
    return rates["beyond"] / rates["fits"]


def beside_a_restore(cairn, folder):
    """What eight streams decode while a ninth session comes back from disk again and again, over what they do alone."""
    with cairn.server("--disk-dir", f"{folder}/beside", "--disk-memory", "1GiB", device_memory=POOL) as server, \
            SessionClient(server.address) as client:
        client.create("long")
        client.decode("long", token_ids(CONTEXT))
        load = cairn.serving_command(server.address, 128, 8, 256)
        alone = cairn.read_cases(run(load))[-1]["tokens_per_s"]
        restores = 0
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            beside = pool.submit(run, load)
            while not beside.done():
                client.suspend("long", "disk")
                client.prefetch("long")
                time.sleep(RESTORE_SECONDS)  # asking more often would cost the streams more than the restore
                restores += client.is_idle("long")
        if restores < 2:
            raise BenchError("the session came back less than twice while the others decoded")
        return cairn.read_cases(beside.result())[-1]["tokens_per_s"] / alone


def session_rates(cairn, folder):
    """Changes a second that eight clients see, each waiting for its answer, with and without a sync behind each."""
    rates = {}
    for level in ("sync", "none"):
        with cairn.server("--disk-dir", f"{folder}/rates-{level}", "--durability", level, device_memory=POOL) as server, \
                SessionClient(server.address) as client, concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            names = [f"s{i}" for i in range(SESSIONS)]
            steps = {"create": lambda name: client.create(name), "append": lambda name: client.append(name, token_ids(8)),
                     "decode": lambda name: client.decode(name), "delete": lambda name: client.delete(name)}
            for title, step in steps.items():
                begin = time.monotonic()
                list(pool.map(step, names))
                rates[f"{title}, {level}"] = SESSIONS / (time.monotonic() - begin)
    return rates


def measure(cairn, home, llama_model, repeat, alone, say):
    """{"times": {name: ms}, "ratios": {name: ratio}}, medians."""
    samples = {}
    for turn in range(repeat):
        say(f"tiers [{turn + 1}/{repeat}]")
        with tempfile.TemporaryDirectory(dir=cairn.build) as folder:  # on a disk, as /tmp may not be
            figures = come_back_figures(cairn, folder)
            figures["raw read"] = raw_read_ms(folder, CONTEXT * 23040)
            figures["beyond the pool"] = beyond_the_pool(cairn)
            figures["beside a restore"] = beside_a_restore(cairn, folder)
            figures |= session_rates(cairn, folder)
            if not alone:
                with LlamaServer(home, llama_model, cairn.threads, folder) as llama:
                    figures |= {f"llama.cpp {name}": value for name, value in llama.measure().items()}
        for name, value in figures.items():
            samples.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in samples.items()}


# Title, measured over yardstick, and the most or least that the ratio may be.
GOALS = [
    ("from the host tier, in place", "host, in-place", "llama.cpp warm", "<=", 0.3),
    ("from the host tier, copied", "host, copied", "llama.cpp warm", "<=", 0.3),
    ("from a cold disk", "disk", "raw read", "<=", 1.25),
    ("from a cold disk", "disk", "llama.cpp cold", "<=", 1.0),
    ("computed again, over a cold disk", "llama.cpp prefill", "disk", ">=", 80),
]


def table(figures):
    lines = [f"| time to first token of a suspended session of {CONTEXT:,} tokens and {NEW} new ones | ms | beside it | ms | "
             "ratio | goal |", "| --- | --- | --- | --- | --- | --- |"]
    for title, name, other, relation, goal in GOALS:
        if name not in figures or other not in figures:
            continue
        ratio = figures[name] / figures[other]
        met = ratio <= goal if relation == "<=" else ratio >= goal
        lines.append(f"| {title} | {figures[name]:,.1f} | {other} | {figures[other]:,.1f} | {ratio:.2f} | {relation} {goal}"
                     f"{short(met)} |")
    lines.append(f"| computed again | {figures['computed']:,.1f} | from a cold disk | {figures['disk']:,.1f} | "
                 f"{figures['computed'] / figures['disk']:.1f} | |")
    lines.append("")
    for title, name, goal in (("decoding a context beyond the device's pool, in place, over one that fits",
                               "beyond the pool", 0.9),
                              ("decoding of eight streams while a ninth comes back from disk, over alone",
                               "beside a restore", 0.85)):
        ratio = figures[name]
        lines.append(f"{title}: {ratio:.2f} (goal >= {goal}{short(ratio >= goal)})")
    lines += ["", f"| sessions a second, {CLIENTS} clients | --durability sync | none |", "| --- | --- | --- |"]
    for title, words in (("create", "created"), ("append", "appended to, 8 tokens"), ("decode", "decoded, 1 token"),
                         ("delete", "deleted")):
        lines.append(f"| {words} | {figures[f'{title}, sync']:,.0f} | {figures[f'{title}, none']:,.0f} |")
    return "\n".join(lines)
