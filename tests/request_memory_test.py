"""What requests cost cairnd in memory: of almost 32 MiB each, made to cost as much as they can, alone and several at once,
and streams that began with one.

Usage: request_memory_test.py CAIRND MODEL
"""

import sys
import threading
import time

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from server_process import Server

MIB = 1 << 20
REQUEST_BYTES = 31 * MIB
# A request is there in the pieces that came, as one piece, parsed, and as the content that is taken from it.
PEAK_GROWTH_MAX = 5 * REQUEST_BYTES
# What stays: connections, arenas, and what a first request makes once.
GROWTH_MAX = 48 * MIB

OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def varint(number):
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes(encoded + bytes([number]))


def field(number, payload):
    """A string, message or packed field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def filled(unit, size=REQUEST_BYTES):
    return unit * (size // len(unit))


SESSIONS = "/cairn.v1.SessionService/"
DECODER = "/cairn.v1.DecodeService/"

# name: method, request, the field that the refusal names
COSTLY = {
    "messages": (DECODER + "Tokenize", field(1, field(2, filled(b"\x0a\x00"))), "content.chat.messages"),
    "stop strings": (SESSIONS + "CreateSession", field(2, field(9, filled(b"\x4a\x01x"))), "session.sampling.stop"),
    "biases": (SESSIONS + "CreateSession", field(2, field(9, filled(b"\x62\x00"))), "session.sampling.logit_bias"),
    "mask paths": (SESSIONS + "UpdateSession", field(2, filled(b"\x0a\x00")), "update_mask.paths"),
    "unknown numbers": (SESSIONS + "GetSession", filled(b"\x78\x00"), "15"),
    "unknown strings": (SESSIONS + "GetSession", filled(b"\x7a\x00"), "15"),
    "names": (SESSIONS + "GetSession", filled(b"\x0a\x01x"), "name"),
    "packed ids": (DECODER + "Detokenize", field(1, filled(b"\x05")), "ids"),
    "ids": (DECODER + "Detokenize", filled(b"\x08\x05"), "ids"),
    "text": (DECODER + "Tokenize", field(1, field(1, filled(b"the rain "))), "content.text"),
}


def memory(server, key):
    """VmRSS or VmHWM, the most so far, in bytes."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise AssertionError(f"no {key}")


def refusal(channel, method, request):
    """The code of a call that fails, and the field that it names."""
    try:
        channel.unary_unary(method)(request)
    except grpc.RpcError as error:
        for detail in rpc_status.from_call(error).details:
            bad_request = error_details_pb2.BadRequest()
            if detail.Unpack(bad_request):
                return error.code(), bad_request.field_violations[0].field
        return error.code(), None
    raise AssertionError(f"{method} took {len(request)} bytes")


def check_one_at_a_time(server, channel):
    before = memory(server, "VmHWM")
    for name, (method, request, bad_field) in COSTLY.items():
        assert refusal(channel, method, request) == (grpc.StatusCode.INVALID_ARGUMENT, bad_field), name
        grown = memory(server, "VmHWM") - before
        assert grown <= PEAK_GROWTH_MAX, f"{name}: {grown // MIB} MiB"


def check_several_at_once(server):
    """Each is refused as bad, or because too much is being read already."""
    found = []

    def attack(method, request):
        with grpc.insecure_channel(server.address, OPTIONS) as channel:
            found.append(refusal(channel, method, request)[0])

    attackers = [threading.Thread(target=attack, args=attack_of[:2]) for attack_of in COSTLY.values()]
    for attacker in attackers:
        attacker.start()
    for attacker in attackers:
        attacker.join()
    assert len(found) == len(COSTLY)
    assert set(found) <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}, found


def check_streams_let_their_requests_go(server, channel):
    """The content is given twice, and the short one counts: nothing of the long one is wanted."""
    content = field(1, field(1, filled(b"x"))) + field(1, field(1, b"Once upon a time"))
    sampling = field(3, b"\x58\x01")  # ignore_eos
    request = content + b"\x10" + varint(8000) + sampling
    before = memory(server, "VmRSS")
    streams = [channel.unary_stream(DECODER + "Generate")(request) for _ in range(8)]
    for stream in streams:
        next(stream)
    deadline = time.monotonic() + 10  # what was read goes back to the system soon, and they decode for longer
    while (grown := memory(server, "VmRSS") - before) > GROWTH_MAX and time.monotonic() < deadline:
        time.sleep(0.05)
    for stream in streams:
        stream.cancel()
    assert grown <= GROWTH_MAX, f"{len(streams)} streams hold {grown // MIB} MiB"


def main():
    cairnd, model = sys.argv[1:]
    with Server(cairnd, model, "--device-memory", "16MiB", "--log-level", "error") as server:
        with grpc.insecure_channel(server.address, OPTIONS) as channel:
            channel.unary_unary("/cairn.v1.ModelService/GetModel")(b"")
            before = memory(server, "VmRSS")
            check_one_at_a_time(server, channel)
            check_several_at_once(server)
            grown = memory(server, "VmRSS") - before
            assert grown <= GROWTH_MAX, f"requests that are over leave {grown // MIB} MiB"
            check_streams_let_their_requests_go(server, channel)


if __name__ == "__main__":
    main()
