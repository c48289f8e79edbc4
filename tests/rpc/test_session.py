"""`Session` through the whole server, with a scripted engine behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
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
    request,
    run_server,
)

SLOW = 20


class Editor:
    """An editor on one stream: sends messages and sorts the answers by sequence."""

    def __init__(self, server: RunningServer) -> None:
        self.call: Any = server.stub.Session()
        self.answers: dict[int, Answer] = {}
        self.refusals: list[tuple[int, str]] = []
        """The sequence and the message of each refusal."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for response in self.call:
                if response.HasField("refusal"):
                    self.refusals.append((response.sequence, response.refusal.error.message))
                else:
                    self.answers.setdefault(response.sequence, Answer()).take(response)

    async def write(self, **event: Any) -> None:
        await self.call.write(pb.SessionRequest(**event))

    async def complete(self, sequence: int, **fields: Any) -> None:
        await self.write(complete=request(sequence=sequence, **fields))

    async def ended(self, sequence: int) -> Answer:
        await eventually(lambda: sequence in self.answers and self.answers[sequence].end is not None)
        return self.answers[sequence]

    async def begin(self, sequence: int, **fields: Any) -> None:
        await self.complete(sequence, **{"max_tokens": ENDLESS} | fields)
        await eventually(lambda: sequence in self.answers)

    async def status(self) -> grpc.StatusCode:
        code: grpc.StatusCode = await asyncio.wait_for(self.call.code(), 10)
        await asyncio.wait([self._reading], timeout=10)
        assert self._reading.done(), "the status has come, and the stream goes on"
        return code


def script(generation: GenerationRequest) -> Iterable[str]:
    if generation.max_tokens in {ENDLESS, SLOW}:
        return (f" w{i}" for i in range(generation.max_tokens))
    return ("alpha", " beta", "\n")


@pytest_asyncio.fixture
async def engine() -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.005))


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    async with run_server(endless_config("admission.max_sessions=2"), lambda: engine) as running:
        yield running


@pytest_asyncio.fixture
async def editor(server: RunningServer) -> AsyncIterator[Editor]:
    editor = Editor(server)
    yield editor
    editor.call.cancel()


async def test_one_stream_answers_supersedes_and_cancels_by_sequence(editor: Editor, engine: ScriptedEngine) -> None:
    await editor.begin(5)
    await editor.complete(9, session_id="")  # the first request named the session
    answer = await editor.ended(9)
    assert (answer.text, answer.reason) == ("alpha beta", "stop")
    assert (await editor.ended(5)).reason == "superseded"
    await editor.begin(10)
    for sequence in (10, 77):  # a number that is not in flight is ignored
        await editor.write(cancel=pb.Cancel(sequence=sequence))
    assert (await editor.ended(10)).reason == "cancelled"
    await eventually(lambda: engine.stats().num_running == 0)
    await editor.call.done_writing()
    assert await editor.status() is grpc.StatusCode.OK


async def test_a_user_over_the_rate_limit_is_shed_and_the_stream_goes_on(engine: ScriptedEngine) -> None:
    config = endless_config("admission.user_requests_per_s=1", "admission.request_burst_s=1", "shed.as_status=true")
    async with run_server(config, lambda: engine) as server:
        editor = Editor(server)
        await editor.begin(1)
        await editor.complete(2)
        shed = await editor.ended(2)
        assert shed.end is not None
        assert (shed.reason, shed.end.shed_reason) == ("shed", pb.SHED_REASON_RATE_LIMITED)
        assert shed.end.limit == pb.Limit(name="admission.user_requests_per_s", allowed=1)
        assert editor.answers[1].end is None  # a refused request does not supersede
        await asyncio.sleep(shed.end.retry_after_ms / 1000)
        await editor.complete(3)
        assert (await editor.ended(3)).reason == "stop"
        editor.call.cancel()


async def test_sessions_are_bounded_and_one_that_closes_frees_its_place_and_the_engine(
    server: RunningServer, editor: Editor, engine: ScriptedEngine
) -> None:
    leaver = Editor(server)
    await editor.call.initial_metadata()
    await leaver.begin(1, session_id="leaver")
    assert server.count("completion_live_sessions") == 2
    assert await Editor(server).status() is grpc.StatusCode.RESOURCE_EXHAUSTED
    leaver.call.cancel()
    await eventually(lambda: engine.stats().num_running == 0)
    await eventually(lambda: server.count("completion_live_sessions") == 1)
    await editor.complete(1)
    assert (await editor.ended(1)).reason == "stop"


async def test_a_bad_request_ends_that_request_and_not_the_stream(server: RunningServer, editor: Editor) -> None:
    await editor.complete(1)
    await editor.ended(1)
    for sequence, (fields, fault) in enumerate(
        (
            ({"session_id": "other"}, "session_id: must be the same on all requests of a stream, or empty"),
            ({"max_tokens": -5}, "max_tokens: must be from 0 (the default) to 1000000, got -5"),
            ({"prefix": "x" * 600_000}, "prefix: must be at most 524288 bytes, got 600000"),
            ({"timeout_ms": 86_400_001}, "timeout_ms: must be from 1 to 86400000, got 86400001"),
        ),
        start=2,
    ):
        await editor.complete(sequence, **fields)
        end = (await editor.ended(sequence)).end
        assert end is not None
        assert (end.finish_reason, end.error.code, end.error.message) == (pb.FINISH_REASON_ERROR, 3, fault)
    await editor.complete(5)  # its End has come, and it has only one
    await editor.write()
    await eventually(lambda: len(editor.refusals) == 2)
    assert editor.refusals == [
        (5, "complete.sequence: must rise within a session: after 5 came 5"),
        (0, "event: must be set"),
    ]
    raw = server.channel.stream_stream(
        "/completion.v1.CompletionService/Session", response_deserializer=pb.SessionResponse.FromString
    )()
    spoilt = pb.SessionRequest(complete=request("SPOIL", sequence=4)).SerializeToString()
    await raw.write(spoilt.replace(b"SPOIL", b"SP\xffIL"))
    response = await asyncio.wait_for(raw.read(), 20)
    assert (response.sequence, response.end.error.message) == (4, "prefix: must be UTF-8, but byte 2 is 0xff")
    raw.cancel()
    await editor.complete(50)
    assert (await editor.ended(50)).reason == "stop"


async def test_feedback_has_an_answer_only_if_it_is_refused(server: RunningServer, editor: Editor) -> None:
    async def report(**fields: Any) -> None:
        await editor.write(feedback=pb.ReportFeedbackRequest(**fields))

    await report(sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)  # nothing was asked yet
    await editor.complete(1)
    await editor.ended(1)
    await report(sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)
    await report(sequence=2, kind=pb.FEEDBACK_KIND_SHOWN)
    await report(sequence=1)
    await report(sequence=1, kind=pb.FEEDBACK_KIND_ACCEPTED, accepted_characters=2**32 - 1)
    await eventually(lambda: server.count("completion_feedback_total", kind="shown") == 1)
    await eventually(lambda: len(editor.refusals) == 4)
    assert server.count("completion_feedback_total", kind="refused") == 4
    assert server.count("completion_accepted_characters_total") == 0
    assert list(editor.answers) == [1]
    assert [(sequence, message.partition(":")[0]) for sequence, message in editor.refusals] == [
        (1, "feedback.session_id"),
        (2, "feedback.sequence"),
        (1, "feedback.kind"),
        (1, "feedback.accepted_characters"),
    ]


async def test_a_drain_sheds_new_requests_finishes_accepted_ones_and_closes_streams(
    server: RunningServer, editor: Editor, engine: ScriptedEngine
) -> None:
    await editor.begin(1, max_tokens=SLOW)
    engine.hang()  # so that the first request is still there when the second comes
    server.app.drain(5.0)
    await eventually(lambda: server.app.is_draining)
    await editor.complete(2)
    shed = (await editor.ended(2)).end
    assert shed is not None
    assert shed.shed_reason == pb.SHED_REASON_DRAINING
    assert server.count("completion_slo_requests_total", result="refused") == 0  # another server answers it
    engine.resume()
    assert (await editor.ended(1)).reason == "length"
    assert await editor.status() is grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(server.task, 10)


async def test_requests_cut_short_by_a_drain_end_unavailable(server: RunningServer, editor: Editor) -> None:
    await editor.begin(1)
    server.app.drain(0.1)
    end = (await editor.ended(1)).end
    assert end is not None
    assert (end.error.code, end.error.reason, end.retry_after_ms) == (14, pb.ERROR_REASON_DRAINING, 1000)
