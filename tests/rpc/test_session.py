"""`Session` through the whole server, with a scripted engine behind it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from completion.v1 import completion_pb2 as pb
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.server import (
    ENDLESS,
    Answer,
    RunningServer,
    endless_config,
    endless_engine,
    eventually,
    next_event,
    request,
    run_server,
)

SLOW = 20


class Editor:
    """An editor on one stream: sends messages and sorts the answers by sequence."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.answers: dict[int, Answer] = {}
        self.refusals: list[tuple[int, str]] = []
        """The sequence and the message of each refusal."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for response in self.call:
            if response.HasField("refusal"):
                self.refusals.append((response.sequence, response.refusal.error.message))
                continue
            self.answers.setdefault(response.sequence, Answer()).take(response)

    async def complete(self, sequence: int, **fields: Any) -> None:
        message = request(sequence=sequence, **fields)
        await self.call.write(pb.SessionRequest(complete=message))

    async def cancel(self, sequence: int) -> None:
        await self.call.write(pb.SessionRequest(cancel=pb.Cancel(sequence=sequence)))

    async def write(self, message: pb.SessionRequest) -> None:
        await self.call.write(message)

    async def ended(self, sequence: int) -> Answer:
        await eventually(lambda: sequence in self.answers and self.answers[sequence].end is not None)
        return self.answers[sequence]

    async def refused(self, number: int) -> tuple[int, str]:
        await eventually(lambda: len(self.refusals) >= number)
        return self.refusals[number - 1]

    async def begun(self, sequence: int) -> None:
        await eventually(lambda: sequence in self.answers)

    async def close(self) -> grpc.StatusCode:
        await self.call.done_writing()
        return await self.status()

    async def status(self) -> grpc.StatusCode:
        code: grpc.StatusCode = await asyncio.wait_for(self.call.code(), 10)
        await asyncio.wait([self._reading], timeout=10)
        assert self._reading.done(), "the status has come, and the stream goes on"
        self._reading.exception()
        return code


def script(generation: GenerationRequest) -> Iterable[str]:
    if generation.max_tokens == ENDLESS:
        return (f" w{i}" for i in range(ENDLESS))
    if generation.max_tokens == SLOW:
        return (f" w{i}" for i in range(SLOW))
    return ("alpha", " beta", "\n")


@pytest_asyncio.fixture
async def engine() -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.005))


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    config = endless_config("admission.max_sessions=2")
    async with run_server(config, lambda: engine) as running:
        yield running


@pytest_asyncio.fixture
async def editor(server: RunningServer) -> AsyncIterator[Editor]:
    call = server.stub.Session()
    yield Editor(call)
    call.cancel()


async def test_answers_carry_the_sequence_of_their_request(editor: Editor) -> None:
    await editor.complete(5)
    assert (await editor.ended(5)).text == "alpha beta"
    await editor.complete(9, session_id="")  # the first request named the session
    assert (await editor.ended(9)).reason == "stop"
    assert await editor.close() is grpc.StatusCode.OK


async def test_a_newer_request_supersedes_the_older_one(editor: Editor, engine: ScriptedEngine) -> None:
    await editor.complete(1, max_tokens=ENDLESS)
    await editor.begun(1)
    await editor.complete(2)
    assert (await editor.ended(2)).reason == "stop"
    assert (await editor.ended(1)).reason == "superseded"
    await eventually(lambda: engine.stats().num_running == 0)


async def test_a_user_over_the_rate_limit_is_shed_and_the_stream_goes_on(engine: ScriptedEngine) -> None:
    config = endless_config("admission.user_requests_per_s=1", "admission.request_burst_s=1", "shed.as_status=true")
    async with run_server(config, lambda: engine) as server:
        editor = Editor(server.stub.Session())
        await editor.complete(1, max_tokens=ENDLESS)
        await editor.begun(1)
        await editor.complete(2)
        shed = await editor.ended(2)
        assert shed.end is not None
        assert (shed.reason, shed.end.shed_reason) == ("shed", pb.SHED_REASON_RATE_LIMITED)
        assert shed.end.limit == pb.Limit(name="admission.user_requests_per_s", allowed=1)
        assert editor.answers[1].end is None  # a refused request does not supersede
        await asyncio.sleep(shed.end.retry_after_ms / 1000)
        await editor.complete(3)
        assert (await editor.ended(3)).reason == "stop"
        assert await editor.close() is grpc.StatusCode.OK


async def test_a_cancel_ends_the_request_and_frees_the_engine(editor: Editor, engine: ScriptedEngine) -> None:
    await editor.complete(1, max_tokens=ENDLESS)
    await editor.begun(1)
    await editor.cancel(1)
    await editor.cancel(77)  # not in flight: ignored
    assert (await editor.ended(1)).reason == "cancelled"
    await eventually(lambda: engine.stats().num_running == 0)


async def test_closing_the_stream_frees_the_engine_and_the_session(
    server: RunningServer, editor: Editor, engine: ScriptedEngine
) -> None:
    leaver = Editor(server.stub.Session())
    await leaver.complete(1, max_tokens=ENDLESS, session_id="leaver")
    await leaver.begun(1)
    assert server.count("completion_live_sessions") == 2
    leaver.call.cancel()
    await eventually(lambda: engine.stats().num_running == 0)
    await eventually(lambda: server.count("completion_live_sessions") == 1)
    await editor.complete(1)
    assert (await editor.ended(1)).reason == "stop"


@pytest.mark.parametrize(
    ("sequence", "fields", "expected"),
    [
        (6, {"session_id": "other"}, "session_id: must be the same on all requests of a stream, or empty"),
        (6, {"max_tokens": -5}, "max_tokens: must be from 0 (the default) to 1000000, got -5"),
        (6, {"prefix": "x" * 600_000}, "prefix: must be at most 524288 bytes, got 600000"),
        (6, {"timeout_ms": 86_400_001}, "timeout_ms: must be from 1 to 86400000, got 86400001"),
    ],
)
async def test_a_bad_request_ends_that_request_and_not_the_stream(
    editor: Editor, sequence: int, fields: dict[str, Any], expected: str
) -> None:
    await editor.complete(5)
    await editor.ended(5)
    await editor.complete(sequence, **fields)
    answer = await editor.ended(sequence)
    assert answer.end is not None
    assert (answer.reason, answer.end.error.code, answer.end.error.message) == ("error", 3, expected)
    await editor.complete(6)  # its End has come, and it has only one
    assert await editor.refused(1) == (6, "complete.sequence: must rise within a session: after 6 came 6")
    await editor.complete(50)
    assert (await editor.ended(50)).reason == "stop"


async def test_requests_cut_short_by_a_drain_end_unavailable(server: RunningServer, editor: Editor) -> None:
    await editor.complete(1, max_tokens=ENDLESS)
    await editor.begun(1)
    server.app.drain(0.1)
    end = (await editor.ended(1)).end
    assert end is not None
    assert (end.error.code, end.error.reason, end.retry_after_ms) == (14, pb.ERROR_REASON_DRAINING, 1000)


async def test_bytes_that_are_not_utf8_end_that_request_alone(server: RunningServer) -> None:
    method = server.channel.stream_stream(
        "/completion.v1.CompletionService/Session", response_deserializer=pb.SessionResponse.FromString
    )
    call = method()
    bad = pb.SessionRequest(complete=request("SPOIL", sequence=4)).SerializeToString().replace(b"SPOIL", b"SP\xffIL")
    await call.write(bad)
    response = await next_event(call)
    assert response.sequence == 4
    assert response.end.error.message == "prefix: must be UTF-8, but byte 2 is 0xff"
    await call.write(pb.SessionRequest(complete=request(sequence=5)).SerializeToString())
    response = await next_event(call)
    assert response.delta.text
    call.cancel()


async def test_an_empty_message_is_refused(editor: Editor) -> None:
    await editor.write(pb.SessionRequest())
    assert await editor.refused(1) == (0, "event: must be set")
    assert editor.answers == {}


async def test_feedback_has_an_answer_only_if_it_is_refused(server: RunningServer, editor: Editor) -> None:
    async def report(**fields: Any) -> None:
        await editor.write(pb.SessionRequest(feedback=pb.ReportFeedbackRequest(**fields)))

    await report(sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)  # nothing was asked yet
    await editor.complete(1)
    await editor.ended(1)
    await report(sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)
    await report(sequence=2, kind=pb.FEEDBACK_KIND_SHOWN)
    await report(sequence=1)
    await report(sequence=1, kind=pb.FEEDBACK_KIND_ACCEPTED, accepted_characters=2**32 - 1)
    await eventually(lambda: server.count("completion_feedback_total", kind="shown") == 1)
    await eventually(lambda: server.count("completion_feedback_total", kind="refused") == 4)
    assert server.count("completion_accepted_characters_total") == 0
    await editor.refused(4)
    assert list(editor.answers) == [1]
    assert editor.refusals == [
        (1, "feedback.session_id: must not be empty"),
        (2, "feedback.sequence: must be that of an answer with text, not older than 900 s"),
        (
            1,
            "feedback.kind: must be one of FEEDBACK_KIND_SHOWN, FEEDBACK_KIND_ACCEPTED, FEEDBACK_KIND_ACCEPTED_WORD, "
            "FEEDBACK_KIND_ACCEPTED_LINE, FEEDBACK_KIND_REJECTED, FEEDBACK_KIND_SURVIVED, "
            "got FEEDBACK_KIND_UNSPECIFIED",
        ),
        (1, "feedback.accepted_characters: must be at most 10, which are left of the answer, got 4294967295"),
    ]


async def test_sessions_beyond_the_limit_are_refused(server: RunningServer, editor: Editor) -> None:
    await editor.call.initial_metadata()  # it has its place before the others ask for theirs
    others = [Editor(server.stub.Session()) for _ in range(2)]
    calls = [asyncio.ensure_future(other.call.code()) for other in others]
    await asyncio.wait(calls, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    refused = [call for call in calls if call.done() and call.result() is grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert len(refused) >= 1
    for other in others:
        other.call.cancel()


async def test_draining_sheds_new_requests_finishes_accepted_ones_and_closes_streams(
    server: RunningServer, editor: Editor, engine: ScriptedEngine
) -> None:
    await editor.complete(1, max_tokens=SLOW)
    await editor.begun(1)
    engine.hang()  # so that the first request is still there when the second comes
    server.app.drain(5.0)
    await eventually(lambda: server.app.is_draining)
    await editor.complete(2)
    assert (await editor.ended(2)).reason == "shed"
    shed = editor.answers[2].end
    assert shed is not None
    assert shed.shed_reason == pb.SHED_REASON_DRAINING
    assert server.count("completion_slo_requests_total", result="refused") == 0  # another server answers it
    engine.resume()
    assert (await editor.ended(1)).reason == "length"
    assert await editor.status() is grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(server.task, 10)
