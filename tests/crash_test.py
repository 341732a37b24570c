"""Kills a real cairnd with SIGKILL at random moments while clients work, starts it again, and compares every session with
what its client was told.

Each life of the server: four clients, each with sessions of its own, create, append, decode, fork, truncate, update and
delete in random order until the server dies. The next server must have every session as its client last heard of it:
tokens, settings and times. What was asked for and not answered when the server died may have happened or not, and nothing
else may: a stream's tokens that were seen are there, and more of them only if they are those that another decode of the
same context gives.

Usage: crash_test.py CAIRND TINY_MODEL_TOOL PROTO_FOLDER [--rounds N] [--seed N] [--model FILE]
"""

import argparse
import copy
import os
import pathlib
import random
import signal
import tempfile
import threading
import time

import grpc

from python_client_test import generate_stubs
from server_process import Server

CLIENTS = 4
SESSIONS_MAX = 6  # of one client
TOKENS_MAX = 1900
LIFE_SECONDS_MAX = 0.35


class Died(Exception):
    """The server has gone away in the middle of a call."""


class Known:
    """A session as its client knows it."""

    def __init__(self, info, tokens):
        self.info = info
        self.tokens = tokens


class Client:
    """Works on sessions of its own. What it knows is exact, but for `doubt`: outcomes of the call that was cut off, each
    as a function from what the new server has of its sessions to whether that is an outcome of the call."""

    def __init__(self, number, seed, stubs):
        self.number = number
        self.random = random.Random(f"{seed} {number}")
        self.common, self.pb = stubs[0], stubs[1]
        self.sessions = {}
        self.doubt = None
        self.error = None
        self.counts = {}
        self.made = 0

    def connect(self, service):
        self.service = service

    def run(self):
        try:
            while True:
                self.act()
        except Died:
            pass
        except BaseException as error:  # noqa: BLE001: told by the main thread
            self.error = error

    def call(self, method, request):
        try:
            return method(request, timeout=60)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise Died() from error
            raise

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def some_tokens(self, most):
        return [self.random.randrange(3, 259) for _ in range(self.random.randrange(1, most))]

    def content(self, tokens):
        return self.common.Content(tokens=self.common.TokenIds(ids=tokens))

    def act(self):
        draw = self.random.random()
        if not self.sessions or (draw < 0.1 and len(self.sessions) < SESSIONS_MAX):
            return self.create()
        name = self.random.choice(sorted(self.sessions))
        known = self.sessions[name]
        if len(known.tokens) > TOKENS_MAX - 200:
            return self.truncate(name, known)
        if draw < 0.3:
            return self.append(name, known)
        if draw < 0.7:
            return self.decode(name, known)
        if draw < 0.8:
            return self.truncate(name, known)
        if draw < 0.87:
            return self.update(name, known)
        if draw < 0.93 and len(self.sessions) < SESSIONS_MAX:
            return self.fork(name, known)
        return self.delete(name, known) if draw > 0.96 else self.read(name, known)

    def new_id(self):
        # Ids are used again, so that a new session may have the name of one that is gone.
        self.made += 1
        ids = [f"c{self.number}-{i}" for i in range(2 * SESSIONS_MAX)]
        return self.random.choice([i for i in ids if f"sessions/{i}" not in self.sessions])

    def create(self):
        new_id = self.new_id()
        tokens = self.some_tokens(1500)
        wanted = self.pb.Session(display_name=f"session {self.made}", priority=self.random.randrange(101),
                                 annotations={"made": str(self.made)}, cache_salt=self.random.choice(["", "salt"]))
        name = f"sessions/{new_id}"
        self.doubt = (name, lambda found: found is None or (
            found.tokens == tokens and found.info.display_name == wanted.display_name))
        info = self.call(self.service.CreateSession, self.pb.CreateSessionRequest(
            session_id=new_id, session=wanted, content=self.content(tokens)))
        self.sessions[name] = Known(info, tokens)
        self.doubt = None
        self.count("created")

    def append(self, name, known):
        tokens = self.some_tokens(60)
        self.doubt = (name, self.same_but(known, tokens=[known.tokens, known.tokens + tokens]))
        answer = self.call(self.service.AppendContent, self.pb.AppendContentRequest(
            name=name, content=self.content(tokens), expected_token_count=len(known.tokens)))
        known.tokens = known.tokens + tokens
        assert answer.token_count == len(known.tokens)
        self.doubt = None
        self.count("appended")

    def decode(self, name, known):
        content = self.some_tokens(20)
        before, context, seen = known.tokens, known.tokens + content, []

        def possible(found):
            if found is None or not same_settings(found.info, known.info):
                return False
            if not seen and found.tokens == before:
                return True
            more = found.tokens[len(context):]
            if found.tokens[:len(context)] != context or more[:len(seen)] != seen:
                return False
            return more == self.decode_again(name, len(context), len(more))

        self.doubt = (name, possible)
        request = self.pb.DecodeRequest(
            name=name, content=self.content(content), max_tokens=self.random.randrange(1, 80),
            sampling=self.common.SamplingParams(ignore_eos=True))
        try:
            for message in self.service.Decode(request, timeout=60):
                seen.extend(message.token_ids)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                self.count("streams cut" if seen else "streams cut before their first token")
                raise Died() from error
            raise
        known.tokens = context + seen
        self.doubt = None
        self.count("decoded")

    def decode_again(self, name, position, count):
        """What follows the first `position` tokens, in a copy that has no more."""
        if count == 0:
            return []
        copy_name = f"sessions/{name.split('/')[1]}-again"
        self.service.ForkSession(self.pb.ForkSessionRequest(
            name=name, session_id=copy_name.split("/")[1], token_count=position))
        seed = self.seed_of(name)
        again = []
        for message in self.service.Decode(self.pb.DecodeRequest(
                name=copy_name, max_tokens=count,
                sampling=self.common.SamplingParams(ignore_eos=True, seed=seed)), timeout=60):
            again.extend(message.token_ids)
        self.service.DeleteSession(self.pb.DeleteSessionRequest(name=copy_name))
        return again

    def seed_of(self, name):
        """The seed that a session has drawn: a stream that ends at once says it."""
        messages = list(self.service.Decode(self.pb.DecodeRequest(name=name, start_position=0, max_tokens=1)))
        return messages[-1].usage.seed

    def truncate(self, name, known):
        count = self.random.randrange(len(known.tokens) + 1)
        self.doubt = (name, self.same_but(known, tokens=[known.tokens, known.tokens[:count]]))
        self.call(self.service.TruncateSession, self.pb.TruncateSessionRequest(name=name, token_count=count))
        known.tokens = known.tokens[:count]
        self.doubt = None
        self.count("truncated")

    def update(self, name, known):
        self.made += 1
        display_name = f"renamed {self.made}"

        def possible(found):
            return found is not None and found.tokens == known.tokens and (
                same_settings(found.info, known.info) or found.info.display_name == display_name)

        self.doubt = (name, possible)
        known.info = self.call(self.service.UpdateSession, self.pb.UpdateSessionRequest(
            session=self.pb.Session(name=name, display_name=display_name, etag=known.info.etag)))
        self.doubt = None
        self.count("updated")

    def fork(self, name, known):
        new_id = self.new_id()
        count = self.random.randrange(len(known.tokens) + 1)
        tokens = known.tokens[:count]
        self.doubt = (f"sessions/{new_id}", lambda found: found is None or (
            found.tokens == tokens and found.info.parent == name))
        info = self.call(self.service.ForkSession, self.pb.ForkSessionRequest(
            name=name, session_id=new_id, token_count=count))
        self.sessions[f"sessions/{new_id}"] = Known(info, tokens)
        self.doubt = None
        self.count("forked")

    def delete(self, name, known):
        before = copy.copy(known)
        self.doubt = (name, lambda found: found is None or (
            found.tokens == before.tokens and same_settings(found.info, before.info)))
        self.call(self.service.DeleteSession, self.pb.DeleteSessionRequest(name=name))
        del self.sessions[name]
        self.doubt = None
        self.count("deleted")

    def read(self, name, known):
        self.doubt = None
        assert read_tokens(self, name) == known.tokens, name
        self.count("read")

    def same_but(self, known, tokens):
        return lambda found: (found is not None and found.tokens in tokens and same_settings(found.info, known.info))

    def check(self):
        """After a new start: what is there is what this client knows, or an outcome of the call that was cut off."""
        found = {}
        request = self.pb.ListSessionsRequest(page_size=1000)
        for info in self.service.ListSessions(request).sessions:
            if info.name.startswith(f"sessions/c{self.number}-"):
                found[info.name] = Known(info, read_tokens(self, info.name))
        doubtful = None
        if self.doubt:
            doubtful, possible = self.doubt
            now = found.get(doubtful)
            assert possible(now), f"{doubtful}: {describe(now)} is no outcome of the call that was cut off; " \
                                  f"before it: {describe(self.sessions.get(doubtful))}"
            self.sessions.pop(doubtful, None)
            if now:
                self.sessions[doubtful] = now
        assert found.keys() == self.sessions.keys(), f"sessions {sorted(found)}, not {sorted(self.sessions)}"
        for name, known in self.sessions.items():
            assert found[name].tokens == known.tokens, f"{name}: {describe(found[name])}, not {describe(known)}"
            assert same_settings(found[name].info, known.info), f"{name}: {found[name].info}, not {known.info}"
        self.doubt = None


def read_tokens(client, name):
    tokens = []
    try:
        for message in client.service.ReadTokens(client.pb.ReadTokensRequest(name=name)):
            tokens.extend(message.token_ids)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            raise Died() from error
        raise
    return tokens


def same_settings(a, b):
    """All that does not change with tokens and time."""
    return all(getattr(a, field) == getattr(b, field) for field in (
        "name", "display_name", "create_time", "priority", "sampling", "parent", "etag", "pinned", "annotations",
        "cache_salt"))


def describe(known):
    return "nothing" if known is None else f"{len(known.tokens)} tokens ending in {known.tokens[-5:]}, {known.info.etag}"


def live_and_die(server, clients, stubs, seconds):
    """One life of the server, of so many seconds; its process is dead afterwards."""
    channels = [grpc.insecure_channel(server.address) for _ in clients]
    for client, channel in zip(clients, channels):
        client.connect(stubs[5].SessionServiceStub(channel))
        client.check()
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    for thread in threads:
        thread.join()
    for channel in channels:
        channel.close()
    for client in clients:
        if client.error:
            raise client.error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cairnd")
    parser.add_argument("tiny_model_tool")
    parser.add_argument("proto_folder")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--model")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        stubs = generate_stubs(options.proto_folder, scratch)
        model = options.model or str(pathlib.Path(scratch) / "tiny.gguf")
        if not options.model:
            assert os.spawnl(os.P_WAIT, options.tiny_model_tool, options.tiny_model_tool, model) == 0
        clients = [Client(i, options.seed, stubs) for i in range(CLIENTS)]
        flags = ["--disk-dir", f"{scratch}/data", "--threads", "1", "--stream-interval", "0",
                 "--device-memory", "256MiB" if options.model else "16MiB"]
        seconds_max = LIFE_SECONDS_MAX * (10 if options.model else 1)  # a real model takes its time
        for round_number in range(options.rounds):
            # The death of a process must take nothing at either level.
            durability = rng.choice(["sync", "sync", "sync", "os"])
            with Server(options.cairnd, model, *flags, "--durability", durability) as server:
                try:
                    live_and_die(server, clients, stubs, rng.random() ** 2 * seconds_max)
                except BaseException:
                    server.log.seek(0)
                    print(f"round {round_number} of seed {options.seed}; the server's log:\n{server.log.read()}")
                    raise
        with Server(options.cairnd, model, *flags) as server:  # the last death is looked at too
            channel = grpc.insecure_channel(server.address)
            for client in clients:
                client.connect(stubs[5].SessionServiceStub(channel))
                client.check()
            assert server.stop() == 0
    totals = {}
    for client in clients:
        for what, count in client.counts.items():
            totals[what] = totals.get(what, 0) + count
    print(f"{options.rounds} deaths: {totals}")
    for what in ("created", "appended", "decoded", "truncated", "updated", "forked", "deleted", "streams cut"):
        assert totals.get(what, 0) > 0 or options.rounds < 50, f"nothing was {what}"


if __name__ == "__main__":
    main()
