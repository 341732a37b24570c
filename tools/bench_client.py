"""A client of cairnd inside the bench: calls cost the two cores of the server as little as they can."""

import functools
import pathlib
import tempfile

import grpc

from stubs import generate_stubs

PROTO = pathlib.Path(__file__).resolve().parent.parent / "proto"


@functools.cache
def stubs():
    with tempfile.TemporaryDirectory() as folder:  # once they are imported the files are not needed
        return generate_stubs(PROTO, folder)


class SessionClient:
    """Sessions of one server, greedy and without stop tokens. `with SessionClient(address) as client:`"""

    def __init__(self, address):
        self.common, self.messages = stubs()[:2]
        self.channel = grpc.insecure_channel(address)
        self.service = stubs()[5].SessionServiceStub(self.channel)
        self.cache_messages = stubs()[3]
        self.cache = stubs()[7].CacheServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def content(self, ids):
        return self.common.Content(tokens=self.common.TokenIds(ids=ids)) if ids else None

    def create(self, session, ids=(), pinned=False):
        self.service.CreateSession(self.messages.CreateSessionRequest(
            session_id=session, content=self.content(ids), session=self.messages.Session(pinned=pinned)))

    def append(self, session, ids):
        self.service.AppendContent(self.messages.AppendContentRequest(
            name=f"sessions/{session}", content=self.content(ids)))

    def decode(self, session, ids=(), count=1):
        """Usage of a turn of `count` tokens after `ids`."""
        *_, last = self.decode_call(session, ids, count)
        return last.usage

    def decode_call(self, session, ids=(), count=1):
        """The messages of such a turn, as they come."""
        return self.service.Decode(self.messages.DecodeRequest(
            name=f"sessions/{session}", content=self.content(ids), max_tokens=count,
            sampling=self.common.SamplingParams(temperature=0, ignore_eos=True)))

    def truncate(self, session, count):
        self.service.TruncateSession(self.messages.TruncateSessionRequest(name=f"sessions/{session}", token_count=count))

    def suspend(self, session, tier):
        self.service.SuspendSession(self.messages.SuspendSessionRequest(
            name=f"sessions/{session}", tier=self.common.Tier.Value(f"TIER_{tier.upper()}")))

    def prefetch(self, session):
        self.service.PrefetchSession(self.messages.PrefetchSessionRequest(name=f"sessions/{session}"))

    def is_idle(self, session):
        found = self.service.GetSession(self.messages.GetSessionRequest(name=f"sessions/{session}"))
        return found.state == self.messages.Session.STATE_IDLE

    def explain_last(self, session):
        """How the session came back the last time."""
        return self.cache.ExplainRestore(self.cache_messages.ExplainRestoreRequest(name=f"sessions/{session}", last=True))

    def tiers_of(self, session):
        """Where each of its blocks lies, by name."""
        report = self.cache.ExplainRestore(self.cache_messages.ExplainRestoreRequest(name=f"sessions/{session}"))
        return [self.common.Tier.Name(block.tier) for block in report.blocks]

    def delete(self, session):
        self.service.DeleteSession(self.messages.DeleteSessionRequest(name=f"sessions/{session}"))
