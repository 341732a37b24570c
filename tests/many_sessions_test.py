"""Forty sessions whose KV outgrows memory and disk talk in turns: each comes back as it was, and the server stays within
its bounds.

Usage: many_sessions_test.py CAIRND CAIRNCTL MODEL [--tokens N] [--seconds S] [--device-memory SIZE] [--host-memory SIZE]
                             [--disk-memory SIZE]
"""

import argparse
import collections
import pathlib
import random
import tempfile
import time

from server_process import Client, Server
from tiers_test import ids, turn

SESSION_COUNT = 40
NEW = 12  # tokens that a turn adds
SAID = 6  # and that it is answered with
BEYOND_POOLS = 200_000_000  # bytes that may be resident beside the pools: weights, stores, buffers
SAMPLE = 3  # sessions that are told again to a server that never moves a block
MIB = 1 << 20


def resident_bytes(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


class Conversation:
    """One session as its answers make it."""

    def __init__(self, name, first_content):
        self.name = name
        self.turns = [first_content]  # what was added in each
        self.answers = []

    def take_turn(self, client):
        """The usage of the turn."""
        content = self.turns[-1]
        said, usage = turn(client, self.name, content, SAID)
        assert len(said) == SAID, f"{self.name}: {said}"
        self.answers.append(said)
        self.turns.append(ids(f"{self.name} {len(self.turns)}", NEW))
        return usage

    def tokens(self):
        """What was added and answered, up to the latest answer."""
        return [token for content, said in zip(self.turns, self.answers)
                for token in [*map(int, content.split(",")), *said]]


def talk(client, server, conversations, seconds, bound):
    """A turn of each, and then of whoever is drawn: as many again, and until the time is over. Tokens found, by tier."""
    draw = random.Random(1)
    found = collections.Counter()
    peak = 0
    begin = time.monotonic()
    turns = 0
    while turns < 2 * len(conversations) or time.monotonic() - begin < seconds:
        conversation = conversations[turns] if turns < len(conversations) else draw.choice(conversations)
        usage = conversation.take_turn(client)
        turns += 1
        for tier in ("device", "host", "disk", "recomputed"):
            found[tier] += int(usage[f"{tier}_tokens"])
        peak = max(peak, resident_bytes(server))
        assert peak <= bound, f"{peak:,} bytes resident after {turns} turns; the bound is {bound:,}"
    print(f"{turns} turns in {time.monotonic() - begin:.0f} s; tokens {dict(found)}; resident at most {peak:,} of {bound:,}")
    return found


def check_tokens(client, conversations):
    for conversation in conversations:
        lines = client.lines("session", "read", conversation.name)
        read = [token for line in lines for token in line.get("token_ids", [])]
        assert read == conversation.tokens(), conversation.name


def tell_again(programs, conversations, device_memory):
    """The same conversations with a server that has room for each."""
    cairnd, cairnctl, model = programs
    with Server(cairnd, model, "--threads", "2", "--device-memory", device_memory) as server:
        client = Client(cairnctl, server.address)
        for conversation in conversations:
            again = Conversation(conversation.name, conversation.turns[0])
            client.json("session", "create", again.name)
            for said in conversation.answers:
                again.take_turn(client)
                assert again.answers[-1] == said, f"{again.name} says something else in turn {len(again.answers)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cairnd")
    parser.add_argument("cairnctl")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--device-memory", type=int, default=8, help="MiB")
    parser.add_argument("--host-memory", type=int, default=16, help="MiB")
    parser.add_argument("--disk-memory", type=int, default=128, help="MiB")
    options = parser.parse_args()
    programs = (options.cairnd, options.cairnctl, options.model)
    bound = (options.device_memory + options.host_memory) * MIB + BEYOND_POOLS
    conversations = [Conversation(f"s{i}", ids(i, options.tokens)) for i in range(SESSION_COUNT)]
    with tempfile.TemporaryDirectory(dir=".") as folder:  # on a disk, as /tmp may not be
        flags = ["--threads", "2", "--device-memory", f"{options.device_memory}MiB", "--host-memory",
                 f"{options.host_memory}MiB", "--disk-dir", folder, "--disk-memory", f"{options.disk_memory}MiB"]
        with Server(options.cairnd, options.model, *flags) as server:
            client = Client(options.cairnctl, server.address)
            for conversation in conversations:
                client.json("session", "create", conversation.name)
            found = talk(client, server, conversations, options.seconds, bound)
            check_tokens(client, conversations)
            assert found["disk"] > options.tokens, f"nothing came from the disk: {found}"
            assert server.stop() == 0
            used = sum(path.stat().st_size for path in (pathlib.Path(folder) / "blocks").rglob("*.sst"))
            assert used <= options.disk_memory * MIB, f"{used:,} bytes on disk"
        told = random.Random(2).sample(conversations, SAMPLE)
        tell_again(programs, told, "320MiB")


if __name__ == "__main__":
    main()
