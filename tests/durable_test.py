"""Sessions on a disk, with a real cairnd: directories that it refuses, disks that fail under it, other models, and a
conversation that goes on after kill -9.

Usage: durable_test.py CAIRND CAIRNCTL TINY_MODEL_TOOL HANGING_DISK PROTO_FOLDER
"""

import contextlib
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cairnd_test import expect_refusal
from python_client_test import details_of, generate_stubs
from server_process import Client, Server

FLAGS = ["--threads", "1", "--device-memory", "16MiB"]


def snapshot(folder):
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def kill(server):
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def log_of(server):
    server.log.seek(0)
    return server.log.read()


class Sessions:
    """Calls of the session service, and the sessions as their answers make them."""

    def __init__(self, stubs):
        self.common, self.pb, self.grpc = stubs[0], stubs[1], stubs[5]
        self.tokens = {}

    @contextlib.contextmanager
    def at(self, server):
        with grpc.insecure_channel(server.address) as channel:
            self.service = self.grpc.SessionServiceStub(channel)
            self.health = health_pb2_grpc.HealthStub(channel)
            yield self

    def content(self, tokens):
        return self.common.Content(tokens=self.common.TokenIds(ids=tokens))

    def create(self, session_id, tokens):
        self.service.CreateSession(self.pb.CreateSessionRequest(session_id=session_id, content=self.content(tokens)))
        self.tokens[session_id] = tokens

    def append(self, session_id, tokens):
        self.service.AppendContent(self.pb.AppendContentRequest(
            name=f"sessions/{session_id}", content=self.content(tokens)))
        self.tokens[session_id] = self.tokens[session_id] + tokens

    def read(self, session_id):
        tokens = []
        for message in self.service.ReadTokens(self.pb.ReadTokensRequest(name=f"sessions/{session_id}")):
            tokens.extend(message.token_ids)
        return tokens

    def check(self):
        """Every session has the tokens that were acknowledged."""
        names = {s.name for s in self.service.ListSessions(self.pb.ListSessionsRequest(page_size=1000)).sessions}
        assert names == {f"sessions/{i}" for i in self.tokens}, names
        for session_id, tokens in self.tokens.items():
            assert self.read(session_id) == tokens, session_id


def check_refusals(cairnd, model, scratch):
    def refuses(path, *says):
        before = snapshot(scratch)
        # A model that is not there: the directory is looked at first, so that a mistake is told at once.
        expect_refusal(cairnd, "--model", "no.gguf", "--disk-dir", path, says=["--disk-dir", str(path), *says])
        assert snapshot(scratch) == before, path

    file = scratch / "file"
    file.write_text("text")
    refuses(file, "must be a directory, is a file")
    refuses(scratch / "no" / "where", "there is no directory", str(scratch / "no"))
    letters = scratch / "letters"
    letters.mkdir()
    (letters / "dear.txt").write_text("dear")
    refuses(letters, "not empty and not Cairn's", "dear.txt")
    foreign = scratch / "foreign"
    foreign.mkdir()
    (foreign / "CURRENT").write_text("MANIFEST-000005\n")
    refuses(foreign, "RocksDB database that is not Cairn's")
    newer = scratch / "newer"
    newer.mkdir()
    (newer / "cairn-directory").write_text("cairn data directory, format 2\n")
    refuses(newer, "format 2", "format 1 only")
    expect_refusal(cairnd, "--durability", "perhaps", says=["--durability", "sync, os, none", "perhaps"])
    with Server(cairnd, model, *FLAGS, "--disk-dir", scratch / "mine") as server:
        expect_refusal(cairnd, "--model", model, "--disk-dir", scratch / "mine",
                       says=["in use", f"process id {server.process.pid}"])
        kill(server)
    with Server(cairnd, model, *FLAGS, "--disk-dir", scratch / "mine") as server:
        assert server.stop() == 0
    # What was kept is damaged as a whole: the server says so, and does not begin again from nothing.
    (scratch / "mine" / "sessions" / "CURRENT").write_text("nonsense")
    expect_refusal(cairnd, "--model", model, *FLAGS, "--disk-dir", scratch / "mine", says=[str(scratch), "sessions"])


def check_other_models(cairnd, sessions, model, other, scratch):
    flags = [*FLAGS, "--disk-dir", scratch / "models"]
    sessions.tokens.clear()
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        sessions.create("long", list(range(3, 253)) * 4)
        sessions.create("short", [5, 6, 7])
        kill(server)
    expect_refusal(cairnd, "--model", other, *flags, says=["--disk-dir", "vocabulary", "a directory of its own"])
    with Server(cairnd, model, *flags, "--context-length", "512") as server, sessions.at(server):
        assert "session 'long' is set aside: it holds 1000 tokens, over the context of 512" in log_of(server)
        try:
            sessions.read("long")
            raise AssertionError("a session over the context is served")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
        sessions.append("short", [8])
        assert server.stop() == 0
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        sessions.check()
        assert server.summary[-2].startswith("sessions 2 of 1,004 tokens in "), server.summary
        assert server.stop() == 0
    with Server(cairnd, model, *flags, "--durability", "none") as server, sessions.at(server):
        assert "sessions end with the process (--durability none)" in server.summary, server.summary
        assert not sessions.service.ListSessions(sessions.pb.ListSessionsRequest()).sessions
        assert server.stop() == 0


def check_chat(cairnd, cairnctl, model, scratch):
    flags = [*FLAGS, "--disk-dir", scratch / "chat"]

    def chat(server, *lines):
        client = Client(cairnctl, server.address)
        client.text("chat", "--session", "trip", "--max-tokens", "8", stdin="".join(f"{line}\n" for line in lines))
        return int(client.json("session", "get", "trip")["token_count"])

    with Server(cairnd, model, *flags) as server:
        first = chat(server, "Where shall we go?")
        kill(server)
    with Server(cairnd, model, *flags) as server:
        assert int(Client(cairnctl, server.address).json("session", "get", "trip")["token_count"]) == first
        assert chat(server, "And then?", "And home?") > first + 16
        assert server.stop() == 0


def check_refused_decode(cairnd, sessions, model, scratch):
    """A Decode that fits nowhere has added nothing, for the next server either; one that fits has, as it told."""
    flags = ["--threads", "1", "--device-memory", "1MiB", "--host-memory", "0", "--disk-dir", scratch / "refused"]
    sessions.tokens.clear()

    def decode(content):
        tokens = []
        for message in sessions.service.Decode(sessions.pb.DecodeRequest(
                name="sessions/a", content=sessions.content(content), max_tokens=4,
                sampling=sessions.common.SamplingParams(ignore_eos=True))):
            tokens.extend(message.token_ids)
        return tokens

    with Server(cairnd, model, *flags) as server, sessions.at(server):
        sessions.create("a", [5, 6, 7])
        for _ in range(2):
            try:
                decode([8] * 8000)
                raise AssertionError("a context of 8,003 tokens in 1 MiB")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            sessions.check()
        kill(server)
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        sessions.check()
        sessions.tokens["a"] = [5, 6, 7, 8, 9, *decode([8, 9])]
        kill(server)
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        sessions.check()
        assert server.stop() == 0


def fill_until_refused(sessions, code):
    """Appends until the disk has no more; the refusal."""
    for _ in range(5000):
        try:
            if len(sessions.tokens["a"]) > 100:
                sessions.service.TruncateSession(sessions.pb.TruncateSessionRequest(name="sessions/a", token_count=10))
                sessions.tokens["a"] = sessions.tokens["a"][:10]
            sessions.append("a", [7] * 1900)
        except grpc.RpcError as error:
            assert error.code() == code, error
            return error
    raise AssertionError("the disk takes everything")


def check_failing_disk(sessions, server, code, heal):
    """The disk of `server` fails now or soon, until `heal`."""
    with sessions.at(server):
        error = fill_until_refused(sessions, code)
        assert "could not be made durable" in error.details(), error.details()
        assert details_of(error)["RetryInfo"].retry_delay.ToMilliseconds() > 0
        for _ in range(20):
            with contextlib.suppress(grpc.RpcError):
                sessions.append("b", [9])  # until the disk has room, it takes a small change at most
            sessions.check()
            assert sessions.health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        with contextlib.suppress(grpc.RpcError):
            fill_until_refused(sessions, code)
        heal()
        give_up = time.monotonic() + 60
        while True:
            try:
                sessions.append("b", [10])
                break
            except grpc.RpcError as again:
                assert again.code() == code and time.monotonic() < give_up, again
                time.sleep(0.1)
        sessions.check()
        log = log_of(server)
        assert "changes cannot be made durable and are refused" in log, log
        assert "changes are durable again" in log, log
        assert len(log.splitlines()) < 60, log  # a line a spell, not one a change
        kill(server)


def check_disks(cairnd, sessions, model, scratch):
    def start(folder):
        return Server(cairnd, model, *FLAGS, "--disk-dir", folder, "--durability", "os")

    def fails(folder, prepare, code, heal):
        sessions.tokens.clear()
        with start(folder) as server:
            with sessions.at(server):
                sessions.create("a", [5, 6])
                sessions.create("b", [8])
            prepare(server)
            check_failing_disk(sessions, server, code, lambda: heal(server))
        with start(folder) as server, sessions.at(server):
            sessions.check()
            assert server.stop() == 0

    def limit(server, size):
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    fails(scratch / "limited", lambda server: limit(server, 300_000), grpc.StatusCode.UNAVAILABLE,
          lambda server: limit(server, resource.RLIM_INFINITY))

    small = scratch / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", small], capture_output=True).returncode != 0:
        return print("a small disk can be mounted by root only: not tried")
    try:
        ballast = small / "ballast"
        ballast.write_bytes(b"b" * (29 << 20))
        fails(small / "data", lambda _: None, grpc.StatusCode.RESOURCE_EXHAUSTED, lambda _: ballast.unlink())
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def flip_bytes(data, draw):
    """A bit in each table of the sessions, somewhere in its first half, where values lie; the files."""
    tables = sorted((data / "sessions").glob("*.sst"))
    for path in tables:
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content) // 2)] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    return tables


def check_damaged_tables(cairnd, sessions, model, scratch):
    """Bytes that change under a stopped server cost the sessions that lie there; the others go on, over starts and
    compactions (every start makes a table, and four are compacted)."""
    data = scratch / "flipped"
    flags = [*FLAGS, "--disk-dir", data]
    sessions.tokens.clear()
    draw = random.Random(7)
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        for i in range(40):
            sessions.create(f"s{i}", [draw.randrange(3, 250) for _ in range(50)])
        kill(server)
    for life in range(6):
        with Server(cairnd, model, *flags) as server, sessions.at(server):
            log = log_of(server)
            set_aside = {line.split("'")[1] for line in log.splitlines() if "is set aside" in line}
            assert ("is damaged" in log) == (life % 2 == 0 and life > 0), log
            for name in set_aside & sessions.tokens.keys():
                try:
                    sessions.read(name)
                    raise AssertionError(f"{name} is served")
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.DATA_LOSS, error
                sessions.service.DeleteSession(sessions.pb.DeleteSessionRequest(name=f"sessions/{name}"))
                del sessions.tokens[name]
            assert len(sessions.tokens) > 35 - 3 * life, f"too much is lost: {sessions.tokens.keys()}\n{log}"
            for name in sessions.tokens:
                if "before the damage" in log and f"'{name}' is what it was" in log:
                    sessions.tokens[name] = sessions.read(name)
                sessions.append(name, [draw.randrange(3, 250) for _ in range(3)])
            sessions.check()
            assert server.stop() == 0
        if life % 2 == 1:
            assert flip_bytes(data, draw)
    assert (data / "sessions.damaged").is_dir()


def check_hanging_disk(cairnd, sessions, model, hanging_disk, scratch):
    """A server whose disk does not answer any more ends on SIGTERM all the same, and what it answered is there."""
    hang = scratch / "hanging" / "hang"
    flags = [*FLAGS, "--disk-dir", scratch / "hanging"]
    preload = {"LD_PRELOAD": hanging_disk,
               "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
    sessions.tokens.clear()
    with Server(cairnd, model, *flags, "--drain-grace", "1", environment=preload) as server, sessions.at(server):
        sessions.create("a", [3, 4, 5])
        sessions.create("b", [6, 7])
        sessions.append("a", [8, 9])
        hang.touch()
        calls = [sessions.service.AppendContent.future(sessions.pb.AppendContentRequest(
            name=f"sessions/{name}", content=sessions.content([11, 12]))) for name in "ab"]
        time.sleep(0.5)
        assert not any(call.done() for call in calls), "it was answered before it was durable"
        begin = time.monotonic()
        assert server.stop() == 1
        assert 5 < time.monotonic() - begin < 30, time.monotonic() - begin
        for call in calls:
            assert call.exception().code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), call.exception()
        said = [line for line in log_of(server).splitlines() if "stopping: the disk has not answered for 1" in line]
        assert len(said) == 1 and "which nobody was told of; sessions are as they were last answered" in said[0], said
    hang.unlink()
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        for name, tokens in sessions.tokens.items():
            # What was not answered has happened or has not.
            assert sessions.read(name) in (tokens, tokens + [11, 12]), name
        assert server.stop() == 0


def check_lost_table(cairnd, sessions, model, scratch):
    """Of a table that is lost as a whole, the names of its sessions are known."""
    data = scratch / "lost"
    flags = [*FLAGS, "--disk-dir", data]
    sessions.tokens.clear()
    for name in "ab":  # each start makes a table of what the one before has logged
        with Server(cairnd, model, *flags) as server, sessions.at(server):
            sessions.create(name, [3, 4, 5])
            kill(server)
    table, = (data / "sessions").glob("*.sst")
    os.truncate(table, table.stat().st_size - 1)
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        try:
            sessions.service.GetSession(sessions.pb.GetSessionRequest(name="sessions/a"))
            raise AssertionError("a session is served that is lost")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DATA_LOSS and "'a'" in error.details(), error
        sessions.service.DeleteSession(sessions.pb.DeleteSessionRequest(name="sessions/a"))
        del sessions.tokens["a"]
        sessions.check()
        sessions.create("a", [6])
        sessions.check()
        assert server.stop() == 0


def check_many(cairnd, sessions, model, scratch):
    """A thousand sessions of 6,000 tokens are there soon after the start."""
    flags = [*FLAGS, "--disk-dir", scratch / "many"]
    tokens = [3 + i * i % 250 for i in range(6000)]
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        sessions.tokens.clear()
        sessions.create("s0", tokens)
        calls = [sessions.service.ForkSession.future(sessions.pb.ForkSessionRequest(
            name="sessions/s0", session_id=f"s{i}")) for i in range(1, 1000)]
        for call in calls:
            call.result()
        kill(server)
    begin = time.monotonic()
    with Server(cairnd, model, *flags) as server, sessions.at(server):
        print(f"ready after {time.monotonic() - begin:.2f} s with 1,000 sessions of 6,000 tokens")
        assert server.summary[-2].startswith("sessions 1,000 of 6,000,000 tokens"), server.summary
        assert sessions.read("s999") == tokens
        assert server.stop() == 0


def main(cairnd, cairnctl, tiny_model_tool, hanging_disk, proto_folder):
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        sessions = Sessions(generate_stubs(proto_folder, folder))

        def make_model(name, *options):
            subprocess.run([tiny_model_tool, scratch / name, *options], check=True)
            return scratch / name

        model = make_model("tiny.gguf")
        check_refusals(cairnd, model, scratch)
        check_other_models(cairnd, sessions, model, make_model("other.gguf", "vocab=400"), scratch)
        check_chat(cairnd, cairnctl, model, scratch)
        check_disks(cairnd, sessions, model, scratch)
        check_hanging_disk(cairnd, sessions, model, hanging_disk, scratch)
        check_damaged_tables(cairnd, sessions, model, scratch)
        check_lost_table(cairnd, sessions, model, scratch)
        long_model = make_model("long.gguf", "context_length=8192")
        check_refused_decode(cairnd, sessions, long_model, scratch)
        check_many(cairnd, sessions, long_model, scratch)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
