"""A client in Python, made from the .proto files as the README says: stubs, a conversation, errors, health, reflection.

Usage: python_client_test.py CAIRND MODEL PROTO_FOLDER
"""

import os
import pathlib
import sys
import tempfile

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from server_process import Server

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from stubs import generate_stubs  # noqa: E402

SERVICES = ["cairn.v1.SessionService", "cairn.v1.DecodeService", "cairn.v1.CacheService", "cairn.v1.ModelService"]


def details_of(error):
    """The details of an RpcError by type name, as a client's library decodes them."""
    status = rpc_status.from_call(error)
    assert status is not None and status.code == error.code().value[0]
    found = {}
    for any_detail in status.details:
        name = any_detail.type_url.rsplit(".", 1)[1]
        detail = getattr(error_details_pb2, name)()
        assert any_detail.Unpack(detail), any_detail.type_url
        assert name not in found, f"two of {name}"
        found[name] = detail
    return found


def expect_error(code, call):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()}: {error.details()}"
        details = details_of(error)
        assert details["ErrorInfo"].domain == "cairn"
        return error, details
    raise AssertionError(f"no error, expected {code}")


def converse(common, session_pb, session):
    """A conversation of two turns; the second finds the first one's context."""
    name = session.CreateSession(session_pb.CreateSessionRequest(
        session_id="python", session=session_pb.Session(display_name="From Python"))).name
    assert name == "sessions/python"

    def say(text):
        content = common.Content(chat=common.ChatMessages(messages=[common.ChatMessage(role="user", content=text)]))
        messages = list(session.Decode(session_pb.DecodeRequest(
            name=name, content=content, max_tokens=24, sampling=common.SamplingParams(temperature=0))))
        assert messages[-1].finish_reason in (common.FINISH_REASON_STOP, common.FINISH_REASON_LENGTH)
        return "".join(message.text for message in messages), messages[-1].usage

    text, usage = say("What is the capital of France? Answer in one word.")
    assert "Paris" in text, text
    assert usage.prompt_tokens == usage.new_tokens and usage.completion_tokens > 0, usage
    _, second = say("And of Italy?")
    assert second.device_tokens > 16, second
    assert second.prompt_tokens == second.cached_tokens + second.recomputed_tokens + second.new_tokens, second

    state = session.GetSession(session_pb.GetSessionRequest(name=name))
    read = list(session.ReadTokens(session_pb.ReadTokensRequest(name=name)))
    assert sum(len(message.token_ids) for message in read) == state.token_count
    assert "Paris" in "".join(message.text for message in read)
    return name, state.token_count


def check_errors(common, session_pb, decode_pb, session, decode, name, token_count):
    text = common.Content(text="x")
    error, details = expect_error(grpc.StatusCode.INVALID_ARGUMENT, lambda: list(decode.Generate(
        decode_pb.GenerateRequest(content=text, sampling=common.SamplingParams(temperature=-1)))))
    violation = details["BadRequest"].field_violations[0]
    assert violation.field == "sampling.temperature" and "[0, 2]" in violation.description
    assert error.details() == f"{violation.field}: {violation.description}"

    _, details = expect_error(grpc.StatusCode.NOT_FOUND, lambda: session.GetSession(
        session_pb.GetSessionRequest(name="sessions/nobody")))
    assert details["ResourceInfo"].resource_name == "sessions/nobody"

    expect_error(grpc.StatusCode.ABORTED, lambda: session.AppendContent(session_pb.AppendContentRequest(
        name=name, content=text, expected_token_count=token_count + 1)))
    _, details = expect_error(grpc.StatusCode.ALREADY_EXISTS, lambda: session.CreateSession(
        session_pb.CreateSessionRequest(session_id="python")))
    assert details["ResourceInfo"].resource_name == name


def check_health_and_reflection(channel):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ["", "liveness", "readiness", *SERVICES]:
        status = health.Check(health_pb2.HealthCheckRequest(service=service)).status
        assert status == health_pb2.HealthCheckResponse.SERVING, service
    reflection = ProtoReflectionDescriptorDatabase(channel)
    assert set(SERVICES) <= set(reflection.get_services())
    described = reflection.FindFileContainingSymbol("cairn.v1.SessionService")
    assert [method.name for method in described.service[0].method][:2] == ["CreateSession", "GetSession"]


def main(cairnd, model, proto_folder):
    with tempfile.TemporaryDirectory() as stubs, Server(cairnd, model, "--device-memory", "64MiB") as server:
        common, session_pb, decode_pb, _, model_pb, session_grpc, decode_grpc, _, model_grpc = generate_stubs(
            proto_folder, stubs)
        with grpc.insecure_channel(server.address) as channel:
            served = model_grpc.ModelServiceStub(channel).GetModel(model_pb.GetModelRequest())
            assert served.kv.bytes_per_token == 23040 and served.vocabulary_size == 49152, served
            session = session_grpc.SessionServiceStub(channel)
            decode = decode_grpc.DecodeServiceStub(channel)
            name, token_count = converse(common, session_pb, session)
            check_errors(common, session_pb, decode_pb, session, decode, name, token_count)
            check_health_and_reflection(channel)
        assert server.stop() == 0
    print("ok")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    main(*sys.argv[1:])
