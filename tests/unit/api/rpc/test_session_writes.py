"""One stream with many requests: writes to a slow reader, refusals, and the end of the stream."""

import asyncio
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion.v1 import completion_pb2 as pb
from completion_server.api.rpc.intake import Intake
from completion_server.api.rpc.session import SessionCall, StreamTimes
from completion_server.core.errors import Code, CompletionError
from completion_server.core.events import RequestEnded
from completion_server.core.request import Caller
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.requests.limits.settings import LimitSettings
from tests.support.authentication import callers
from tests.support.cancels import cancel_and_wait
from tests.support.constants import with_constants
from tests.support.server import eventually, request
from tests.support.services import FOUR_SLOTS, RunningService, in_virtual_time

CALLER = Caller("u", connection="127.0.0.1:1", peer="127.0.0.1")
LONG_S = 100_000.0
LIMITS = with_constants(LimitSettings(), max_requests_per_session=3)


class Client:
    """The client's side of a call: sends messages of the test, and reads at once or when the test allows it."""

    def __init__(self, *, reads: bool = True) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.written: list[pb.SessionResponse] = []
        if reads:
            self.reads.set()

    async def read(self) -> Any:
        return await self.messages.get()

    async def write(self, response: pb.SessionResponse) -> None:
        self.written.append(response)
        await self.reads.wait()

    def send(self, message: pb.SessionRequest) -> None:
        self.messages.put_nowait(message.SerializeToString())

    def ask(self, sequence: int, **fields: Any) -> None:
        self.send(pb.SessionRequest(complete=request(sequence=sequence, **fields)))

    def cancel(self, sequence: int) -> None:
        self.send(pb.SessionRequest(cancel=pb.Cancel(sequence=sequence)))

    def events(self, sequence: int) -> list[str | None]:
        return [each.WhichOneof("event") for each in self.written if each.sequence == sequence]

    def errors(self) -> list[tuple[int, int]]:
        """Return the sequence and the status of each request that failed, and of each refusal."""
        return [
            (each.sequence, each.end.error.code or each.refusal.error.code)
            for each in self.written
            if each.end.HasField("error") or each.HasField("refusal")
        ]


class Stream:
    """A stream that is served until the end of the test, or its own."""

    opened: ClassVar["list[Stream]"] = []

    def __init__(self, running: RunningService, client: Client, **options: Any) -> None:
        times = {"first_request_s": LONG_S, "idle_s": LONG_S, "max_age_s": LONG_S, "stall_timeout_s": 60.0}
        who, authenticator = options.pop("who", CALLER), options.pop("authenticator", None)
        intake = Intake(LIMITS, callers(authenticator), 10.0, running.service.now)
        self.call = SessionCall(
            running.service,
            intake,
            StreamTimes(**(times | options)),
            client,  # type: ignore[arg-type]
            who,
        )
        self.serving = asyncio.create_task(self.call.run())
        self.opened.append(self)

    async def end(self) -> CompletionError | None:
        return await asyncio.wait_for(self.serving, LONG_S)


def endless_engine() -> Engine:
    return ScriptedEngine(lambda _request: (f"a{n} " for n in itertools.count()), ServiceTimes(decode_base_s=0.01))


def served(**options: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test with a service, in virtual time; the service is its first argument."""

    def decorated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **named: Any) -> None:
            async def scenario(running: RunningService) -> None:
                await test(running, *args, **named)
                while Stream.opened:
                    await cancel_and_wait(Stream.opened.pop().serving)

            in_virtual_time(scenario, endless_engine, **options)

        parameters = list(inspect.signature(test).parameters.values())[1:]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorated


@served()
async def test_unwritten_text_is_dropped_when_a_newer_request_supersedes_it(running: RunningService) -> None:
    caller = Client(reads=False)
    Stream(running, caller)
    caller.ask(1, trigger=pb.TRIGGER_PREFETCH)
    await asyncio.sleep(0.005)
    caller.ask(2)
    await asyncio.sleep(0.1)
    assert [(each.sequence, each.WhichOneof("event")) for each in caller.written] == [(1, "delta")]
    caller.ask(3, prefix="y = ")
    await asyncio.sleep(0.1)
    assert running.recorder.ended[0][1].value == "superseded"
    caller.reads.set()
    await asyncio.sleep(10.0)
    assert caller.events(2) == ["end"]
    assert (caller.events(1)[-1], caller.events(3)[-1]) == ("end", "end")


@served()
async def test_a_caller_that_types_faster_than_it_reads_gets_its_newest_answer(running: RunningService) -> None:
    caller = Client(reads=False)
    Stream(running, caller)
    for sequence in range(1, 41):
        caller.ask(sequence, prefix=f"x{sequence} = ")
        await asyncio.sleep(0.02)
    assert 0 < len(running.recorder.ended) < 20, "the stream is not read while its answers are unwritten"
    await asyncio.sleep(30.0)
    caller.reads.set()
    await asyncio.sleep(10.0)
    ended = [event.request for event in running.recorder.recorded if isinstance(event, RequestEnded)]
    assert len(ended) == 40
    assert ended[-1].received_at - ended[0].received_at > 30.0
    assert caller.errors() == []
    ends = {each.sequence: each.end.finish_reason for each in caller.written if each.HasField("end")}
    assert sorted(ends) == list(range(1, 41))
    assert ends[40] == pb.FINISH_REASON_LENGTH, "the newest is answered"
    assert [each.receive_began_at for each in ended] == pytest.approx([each.received_at for each in ended])


@served()
async def test_a_request_ends_at_its_own_deadline_after_the_text_so_far(running: RunningService) -> None:
    caller = Client()
    Stream(running, caller)
    caller.ask(1, max_tokens=100, timeout_ms=500)
    began_at = running.service.now()
    await eventually(lambda: "end" in caller.events(1))
    assert running.service.now() - began_at == pytest.approx(0.5, abs=0.03)
    assert caller.events(1)[0] == "delta"
    assert caller.written[-1].end.finish_reason == pb.FINISH_REASON_DEADLINE


MESSAGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ask", "bad field", "too large"]), st.integers(0, 9)),
        st.tuples(st.sampled_from(["cancel", "feedback"]), st.integers(0, 9)),
        st.just(("empty", 0)),
    ),
    max_size=20,
)


@given(MESSAGES)
@served()
async def test_every_number_has_one_end_and_every_other_refused_message_a_refusal(
    running: RunningService, messages: list[tuple[str, int]]
) -> None:
    caller = Client()
    Stream(running, caller)
    last, ends, refusals = 0, [], []
    for kind, sequence in messages:
        if kind == "empty":
            caller.send(pb.SessionRequest())
        elif kind == "cancel":
            caller.cancel(sequence)
        elif kind == "feedback":
            report = pb.ReportFeedbackRequest(session_id="s", sequence=sequence)  # without a kind
            caller.send(pb.SessionRequest(feedback=report))
        else:
            fields = {"bad field": {"max_tokens": -1}, "too large": {"prefix": "x" * LIMITS.max_prefix_bytes + "x"}}
            caller.ask(sequence, **fields.get(kind, {}))
        if kind in {"empty", "feedback"} or (kind != "cancel" and sequence <= last):
            refusals.append(sequence)
        elif kind != "cancel":
            ends.append(sequence)
            last = sequence
        await asyncio.sleep(0.02)
    await asyncio.sleep(10.0)
    assert [each.sequence for each in caller.written if each.HasField("refusal")] == refusals
    assert sorted(each.sequence for each in caller.written if each.HasField("end")) == ends


@served(scheduling=dataclasses.replace(FOUR_SLOTS, supersede=False))
async def test_a_request_over_the_limit_is_refused_and_later_cancels_are_read(running: RunningService) -> None:
    caller = Client(reads=False)
    Stream(running, caller)
    for sequence in range(1, 5):
        caller.ask(sequence)
    caller.cancel(1)
    await asyncio.sleep(0.001)
    assert [reason.value for _, reason in running.recorder.ended] == ["cancelled"]
    caller.reads.set()
    await asyncio.sleep(10.0)
    assert caller.errors() == [(4, Code.RESOURCE_EXHAUSTED)]
    (refused,) = [each.end.error.message for each in caller.written if each.sequence == 4]
    assert refused == "3 requests of this stream are live (limits.max_requests_per_session)"
    caller.ask(4)  # it has its End
    await asyncio.sleep(10.0)
    assert caller.events(4) == ["end", "refusal"]


@served()
async def test_unread_refusals_stop_the_reading_of_requests(running: RunningService) -> None:
    caller = Client(reads=False)
    Stream(running, caller)
    for _ in range(100):
        caller.send(pb.SessionRequest())
    await asyncio.sleep(1.0)
    held = 100 - caller.messages.qsize()
    assert LIMITS.max_requests_per_session < held < 20
    caller.reads.set()
    await asyncio.sleep(1.0)
    assert caller.errors() == [(0, Code.INVALID_ARGUMENT)] * 100


@pytest.mark.parametrize(
    ("times", "asks_at", "ends_at", "why"),
    [
        ({"first_request_s": 60.0}, (), 60.0, "no request came"),
        ({"first_request_s": 60.0, "idle_s": 300.0}, (50.0,), 350.0, "no message for"),
        ({"idle_s": 300.0}, (10.0, 250.0, 500.0), 800.0, "no message for"),
        ({"idle_s": 300.0, "max_age_s": 1000.0}, (200.0, 400.0, 600.0, 800.0), 1000.0, "s old"),
    ],
)
@served()
async def test_a_stream_ends_at_its_time_limits(
    running: RunningService, times: dict[str, float], asks_at: tuple[float, ...], ends_at: float, why: str
) -> None:
    begin = asyncio.get_running_loop().time()
    caller = Client()
    stream = Stream(running, caller, **times)
    for number, at in enumerate(asks_at):
        await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
        caller.ask(number + 1)
    failure = await stream.end()
    assert failure is not None
    assert (failure.code, failure.reason, failure.retry_after_ms) == (Code.UNAVAILABLE, "SESSION_ENDED", 0)
    assert why in failure.message
    assert asyncio.get_running_loop().time() - begin == pytest.approx(ends_at, abs=0.01)
    ended = [each.sequence for each in caller.written if each.HasField("end")]
    assert ended == list(range(1, len(asks_at) + 1))


@served()
async def test_a_stream_with_an_open_request_is_not_idle_and_answers_it_before_it_ends_for_its_age(
    running: RunningService,
) -> None:
    begin = asyncio.get_running_loop().time()
    caller = Client()
    stream = Stream(running, caller, idle_s=0.2, max_age_s=0.5)
    caller.ask(1, max_tokens=100)  # a second's worth
    failure = await stream.end()
    assert failure is not None
    assert "s old" in failure.message
    assert caller.written[-1].end.finish_reason == pb.FINISH_REASON_LENGTH
    assert asyncio.get_running_loop().time() - begin >= 0.9


@served()
async def test_a_caller_that_vanishes_while_it_is_written_to_is_no_failure(running: RunningService) -> None:
    class Vanished(Client):
        async def write(self, response: pb.SessionResponse) -> None:
            raise grpc.aio.BaseError

    caller = Vanished()
    stream = Stream(running, caller)
    caller.ask(1)
    assert await stream.end() is None
