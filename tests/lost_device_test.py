"""A real cairnd that loses its CUDA device again and again, which is emulated (tests/cuda_emu/emulated_plugin.cc): while
it decodes, while blocks are copied, wherever a call meets it.

Each time every stream ends with UNAVAILABLE, health is NOT_SERVING, and the process says one line and exits with 1. The
next one has exactly the tokens that streams have told, finds blocks on its disk, and goes on; in the end all sessions
have the tokens of a server that has never failed.

Usage: lost_device_test.py CAIRND PLUGIN TINY_MODEL_TOOL PROTO_FOLDER [--seed N]
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from python_client_test import generate_stubs
from server_process import Server

SESSIONS = ["a", "b", "c"]
ENDLESS = 3000  # tokens: more than a stream gets before the device is lost, however busy the machine
LAST = 20  # tokens of each session when nothing fails any more
FLAGS = ["--backend", "cuda", "--threads", "1", "--device-memory", "1MiB", "--host-memory", "1MiB", "--disk-memory",
         "64MiB", "--restore-policy", "load_all", "--stream-interval", "0"]
# Calls that meet the loss, and what they say.
LOSSES = [("cudaLaunchKernel", "cudaErrorIllegalAddress"), ("cudaGraphLaunch", "cudaErrorLaunchFailure"),
          ("cudaStreamSynchronize", "cudaErrorECCUncorrectable"), ("cudaEventRecord", "cudaErrorIllegalAddress")]
NUMBERS = {"cudaErrorECCUncorrectable": 214, "cudaErrorIllegalAddress": 700, "cudaErrorLaunchFailure": 719}


class Health(threading.Thread):
    """What health says of a service, as long as the server is there."""

    def __init__(self, channel, service):
        super().__init__()
        self.call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
        self.said = []
        self.start()

    def run(self):
        serving = health_pb2.HealthCheckResponse
        with contextlib.suppress(grpc.RpcError):
            for answer in self.call:
                self.said.append(serving.ServingStatus.Name(answer.status))
                if answer.status == serving.NOT_SERVING:
                    self.call.cancel()


class Stream(threading.Thread):
    """Decodes so many tokens, or until it fails."""

    def __init__(self, service, pb, common, session, count):
        super().__init__()
        self.session = session
        self.tokens, self.usage, self.error = [], None, None
        self.call = service.Decode(pb.DecodeRequest(
            name=f"sessions/{session}", max_tokens=count,
            sampling=common.SamplingParams(temperature=0.8, seed=SESSIONS.index(session) + 7, ignore_eos=True)), timeout=120)
        self.start()

    def run(self):
        try:
            for message in self.call:
                self.tokens.extend(message.token_ids)
                self.usage = message.usage
        except grpc.RpcError as error:
            self.error = error


class Sessions:
    """The session service of one server after the other, and the sessions as it has told them."""

    def __init__(self, stubs, prompts):
        self.common, self.pb, self.grpc = stubs[0], stubs[1], stubs[5]
        self.prompts = prompts
        self.tokens = {}

    @contextlib.contextmanager
    def at(self, server):
        with grpc.insecure_channel(server.address) as self.channel:
            self.service = self.grpc.SessionServiceStub(self.channel)
            yield self

    def create(self):
        for session, tokens in self.prompts.items():
            self.service.CreateSession(self.pb.CreateSessionRequest(
                session_id=session, content=self.common.Content(tokens=self.common.TokenIds(ids=tokens))))
            self.tokens[session] = list(tokens)

    def decode(self, session, count):
        return Stream(self.service, self.pb, self.common, session, count)

    def decode_well(self, session, count):
        stream = self.decode(session, count)
        self.keep(stream)
        assert stream.error is None, stream.error

    def suspend(self, session, tier):
        self.service.SuspendSession(self.pb.SuspendSessionRequest(name=f"sessions/{session}", tier=tier), timeout=60)

    def keep(self, stream):
        stream.join()
        self.tokens[stream.session] += stream.tokens

    def check(self):
        for session, tokens in self.tokens.items():
            found = []
            for message in self.service.ReadTokens(self.pb.ReadTokensRequest(name=f"sessions/{session}")):
                found.extend(message.token_ids)
            assert found == tokens, f"{session}: {len(found)} tokens, not {len(tokens)} that were told"

    def finish(self, lengths):
        """Decodes until the sessions are so long; of how many tokens blocks came from the disk."""
        streams = [self.decode(session, lengths[session] - len(self.tokens[session])) for session in SESSIONS]
        for stream in streams:
            self.keep(stream)
            assert stream.error is None, stream.error
        return sum(stream.usage.disk_tokens for stream in streams)


class Machine:
    """Programs in a folder of their own: cairnd, and what it takes for the driver and the plugin of CUDA."""

    def __init__(self, cairnd, plugin, folder):
        self.cairnd = shutil.copy(cairnd, folder / "cairnd")
        shutil.copy(plugin, folder / "libcairn_cuda.so")
        os.symlink("libcairn_cuda.so", folder / "libcuda.so.1")
        os.environ["LD_LIBRARY_PATH"] = str(folder)
        self.faults, self.taken = folder / "faults", folder / "faults_taken"
        os.mkfifo(self.faults)

    def lose(self, server, *losses):
        """The device is lost at the first of these calls: (function, number from now, error)."""
        self.taken.unlink(missing_ok=True)
        self.faults.write_text("".join(f"{function} {number} {NUMBERS[error]}\n" for function, number, error in losses))
        while not self.taken.exists() and server.process.poll() is None:
            time.sleep(0.002)


def log_of(server):
    server.log.seek(0)
    return server.log.read()


def expect_exit(server, error):
    assert server.process.wait(timeout=60) == 1, server.process.returncode
    log = log_of(server)
    ends = [line for line in log.splitlines() if "device" in line]
    assert len(ends) == 1, log
    assert re.fullmatch(rf"\S+ error stopping: the device is lost: CUDA: .*{error}.*; sessions are as they were last "
                        r"answered", ends[0]), ends[0]
    check_log(log)


def check_log(log):
    """Nothing but the server's own lines: what the emulator finds wrong it prints."""
    for line in log.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\S+ (info|warning|error) ", line), log


def expect_lost(error, name):
    assert error is not None and error.code() == grpc.StatusCode.UNAVAILABLE, error
    assert error.details().startswith("the device is lost: CUDA: ") and name in error.details(), error.details()


def lose_while_decoding(machine, server, sessions, loss, rng):
    """Three streams in the midst of their tokens; they end behind the last one that is in the session."""
    health = [Health(sessions.channel, service) for service in ("", "liveness", "cairn.v1.SessionService")]
    streams = [sessions.decode(session, ENDLESS) for session in SESSIONS]
    wanted = rng.randrange(1, 5)
    while not all(len(stream.tokens) >= wanted for stream in streams):
        assert all(stream.is_alive() for stream in streams), [stream.error for stream in streams]
        time.sleep(0.002)
    function, error = loss
    machine.lose(server, (function, rng.randrange(1, 6), error))
    for stream in streams:
        sessions.keep(stream)
        expect_lost(stream.error, error)
    late = sessions.decode("a", 1)
    late.join()
    assert not late.tokens and late.error.code() == grpc.StatusCode.UNAVAILABLE, late.error
    for watch in health:
        watch.join()
        assert set(watch.said[:-1]) == {"SERVING"} and watch.said[-1] == "NOT_SERVING", watch.said
    expect_exit(server, error)


def lose_while_copying(machine, server, sessions):
    """Nobody decodes; the blocks of a session are on their way to the disk."""
    sessions.decode_well("b", 3)
    error = "cudaErrorECCUncorrectable"
    machine.lose(server, *[(copy, 1, error) for copy in ("cudaMemcpyAsync", "cudaMemcpyBatchAsync", "cudaLaunchKernel")])
    with contextlib.suppress(grpc.RpcError):
        sessions.suspend("b", sessions.common.TIER_DISK)
    expect_exit(server, error)


def main():
    parser = argparse.ArgumentParser()
    for argument in ("cairnd", "plugin", "tiny_model_tool", "proto_folder"):
        parser.add_argument(argument)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        stubs = generate_stubs(options.proto_folder, scratch)
        model = str(scratch / "tiny.gguf")
        subprocess.run([options.tiny_model_tool, model, "layers=1", "width=32", "heads=2", "kv_heads=1",
                        "context_length=65536"], check=True)
        machine = Machine(options.cairnd, options.plugin, scratch)
        prompts = {session: [rng.randrange(3, 259) for _ in range(rng.randrange(20, 100))] for session in SESSIONS}

        sessions = Sessions(stubs, prompts)
        flags = [*FLAGS, "--disk-dir", scratch / "data"]
        for number, loss in enumerate([*LOSSES, None]):
            with Server(machine.cairnd, model, *flags) as server, sessions.at(server):
                try:
                    assert "backend  cuda: asked for" in server.summary, server.summary
                    if number == 0:
                        sessions.create()
                        sessions.decode_well("c", 1)
                        sessions.suspend("c", sessions.common.TIER_DISK)
                    sessions.check()
                    if loss:
                        lose_while_decoding(machine, server, sessions, loss, rng)
                    else:
                        lose_while_copying(machine, server, sessions)
                except BaseException:
                    print(f"life {number}; the server's log:\n{log_of(server)}")
                    raise
        with Server(machine.cairnd, model, *flags) as server, sessions.at(server):
            sessions.check()
            lengths = {session: len(tokens) + LAST for session, tokens in sessions.tokens.items()}
            disk_tokens = sessions.finish(lengths)
            assert server.stop() == 0
            check_log(log_of(server))

        sound = Sessions(stubs, prompts)
        with Server(machine.cairnd, model, *FLAGS, "--disk-dir", scratch / "sound") as server, sound.at(server):
            sound.create()
            sound.finish(lengths)
            assert server.stop() == 0
            check_log(log_of(server))
        assert sessions.tokens == sound.tokens and disk_tokens > 0, disk_tokens
    told = sum(len(tokens) for tokens in sessions.tokens.values())
    print(f"{len(LOSSES) + 1} devices lost; {told} tokens in {len(SESSIONS)} sessions, {disk_tokens} from the disk at last")


if __name__ == "__main__":
    main()
