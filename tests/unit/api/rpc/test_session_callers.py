"""The caller of an open stream is verified again: a key is revoked, a token expires, a new one comes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from completion.v1 import completion_pb2 as pb
from completion_server.core.credential import Scope
from completion_server.core.errors import Code
from completion_server.core.events import RequestEnded
from completion_server.core.request import Caller
from tests.support.authentication import LONG_PAST_S, KnownCallers, verified
from tests.support.services import RunningService
from tests.unit.api.rpc.test_session_writes import Client, Stream, served

ADA = verified("ada", credential="first", expires_at=LONG_PAST_S)
AGAIN = verified("ada", credential="second")
BOB = verified("bob", credential="third")
TOKENS = {"again": AGAIN, "bob": BOB, "other": verified("ada", credential="fourth", tenant="initech")}
GRACE_S, NOTICED_S = 30.0, 2.0


class Connected(Client):
    """A caller with a connection."""

    def peer(self) -> str:
        return "ipv4:10.0.0.7:1"

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", "Bearer first"),)

    def bring(self, token: str, **event: Any) -> None:
        self.send(pb.SessionRequest(authorization=f"Bearer {token}", **event))


def name_of(caller: Caller) -> str:
    assert caller.credential is not None
    return caller.credential.name


def open_stream(running: RunningService, client: Client, known: KnownCallers, who: Caller) -> Stream:
    here = replace(who, connection="10.0.0.7:1", peer="10.0.0.7")
    return Stream(running, client, authenticator=known, who=here)


@pytest.mark.parametrize("asks_again", [False, True])
@served()
async def test_a_stream_whose_key_is_revoked_ends_soon_and_its_request_with_it(
    running: RunningService, asks_again: bool
) -> None:
    loop, known, caller = asyncio.get_running_loop(), KnownCallers(), Connected()
    stream = open_stream(running, caller, known, AGAIN)
    await asyncio.sleep(9.5)
    caller.ask(1, max_tokens=100)  # a second's worth
    await asyncio.sleep(0.1)
    known.revoke("second")
    revoked_at = loop.time()
    if asks_again:
        caller.ask(2)
    failure = await stream.end()
    assert failure is not None
    assert (failure.code, failure.message) == (Code.UNAUTHENTICATED, "key second: was revoked")
    assert loop.time() - revoked_at <= (0.1 if asks_again else NOTICED_S + 0.1)
    assert caller.written[-1].end.finish_reason == pb.FINISH_REASON_CANCELLED
    assert caller.events(2) == []


@served()
async def test_an_expired_token_has_a_time_of_grace_in_which_requests_are_served(running: RunningService) -> None:
    loop, known, caller = asyncio.get_running_loop(), KnownCallers(), Connected()
    stream = open_stream(running, caller, known, ADA)
    await asyncio.sleep(10.0)
    known.now = LONG_PAST_S
    expired_at = loop.time()
    caller.ask(1, max_tokens=3)
    await asyncio.sleep(GRACE_S - 2 * NOTICED_S)
    caller.ask(2, max_tokens=3)
    failure = await stream.end()
    assert failure is not None
    assert failure.code is Code.UNAUTHENTICATED
    assert failure.message == "key first: expired, and no valid one came within 30 s"
    assert GRACE_S <= loop.time() - expired_at <= GRACE_S + NOTICED_S + 0.1
    assert [caller.events(sequence)[-1] for sequence in (1, 2)] == ["end", "end"]


@pytest.mark.parametrize("has_event", [False, True])
@served()
async def test_a_new_token_of_the_same_user_lets_the_stream_go_on(running: RunningService, has_event: bool) -> None:
    known, caller = KnownCallers(TOKENS), Connected()
    stream = open_stream(running, caller, known, ADA)
    caller.ask(1, max_tokens=3)
    await asyncio.sleep(10.0)
    known.now = LONG_PAST_S
    await asyncio.sleep(GRACE_S - NOTICED_S)
    caller.bring("again", **({"cancel": pb.Cancel(sequence=9)} if has_event else {}))
    await asyncio.sleep(10 * GRACE_S)
    caller.ask(2, max_tokens=3)
    await asyncio.sleep(1.0)
    assert caller.events(2)[-1] == "end"
    assert caller.errors() == []
    assert not stream.serving.done()
    assert name_of(stream.call.caller) == "second"
    ended = [each for each in running.recorder.recorded if isinstance(each, RequestEnded)]
    assert [name_of(each.request.caller) for each in ended] == ["first", "second"]


@pytest.mark.parametrize(
    ("token", "code"),
    [("bob", Code.PERMISSION_DENIED), ("other", Code.PERMISSION_DENIED), ("forged", Code.UNAUTHENTICATED)],
)
@served()
async def test_a_token_of_another_user_or_tenant_or_of_nobody_ends_the_stream(
    running: RunningService, token: str, code: Code
) -> None:
    caller = Connected()
    stream = open_stream(running, caller, KnownCallers(TOKENS), AGAIN)
    caller.bring(token, complete=pb.CompleteRequest(session_id="s", sequence=1, prefix="x = "))
    failure = await stream.end()
    assert failure is not None
    assert failure.code is code
    assert caller.written == []


@served()
async def test_feedback_on_a_stream_needs_its_scope(running: RunningService) -> None:
    caller = Connected()
    open_stream(running, caller, KnownCallers(), verified("ada", Scope.COMPLETE, credential="first"))
    caller.ask(1, max_tokens=3)
    report = pb.ReportFeedbackRequest(session_id="s", sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)
    caller.send(pb.SessionRequest(feedback=report))
    await asyncio.sleep(1.0)
    (refusal,) = [each.refusal.error for each in caller.written if each.HasField("refusal")]
    assert (refusal.code, refusal.message) == (Code.PERMISSION_DENIED, "key first: lacks the scope feedback")
    assert caller.events(1)[-1] == "end"


@served()
async def test_a_token_that_an_open_server_does_not_read_is_no_fault(running: RunningService) -> None:
    caller = Connected()
    Stream(running, caller)
    caller.bring("whatever")
    await asyncio.sleep(1.0)
    assert caller.written == []
