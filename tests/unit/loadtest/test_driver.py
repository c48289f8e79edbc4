"""The open-loop driver, against real servers on loopback: a `Session` over gRPC, and completions over HTTP."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceServicer, add_CompletionServiceServicer_to_server
from completion_server.core.errors import SessionEndedError
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.rpc.status import abort
from loadtest import targets
from loadtest.bench.scheduler.capacity import completions_per_s, measure_capacity
from loadtest.driving.driver import Callbacks, Driver, drive
from loadtest.processes.counters import MetricsError, sum_counter
from loadtest.targets import ClientSettings, TargetError, TargetSpec, channels
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.http import HttpTarget
from loadtest.targets.record import Outcome, Record, Result, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import OPENING_SEQUENCE, Event, Trace, Trigger
from tests.support.server import make_config, run_server
from tests.unit.loadtest.typed import GOES_ON, trace

METRICS = """
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} %d
vllm:generation_tokens_total{engine="1"} 2
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 7
"""


@dataclass
class Counter:
    """A /metrics page that counts up by ten with each look."""

    looks: int = 0

    async def show(self, _request: web.Request) -> web.Response:
        self.looks += 1
        return web.Response(text=METRICS % (self.looks * 10))


@dataclass
class Editors(CompletionServiceServicer):
    """Answers by sequence as a script says; supersedes what it holds when the next request comes."""

    script: dict[int, str] = field(default_factory=dict)
    """"answer" where nothing is said."""
    users: list[str] = field(default_factory=list)
    requests: list[pb.CompleteRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    refuses: str = ""
    """Why a stream is ended at once."""
    peers: set[str] = field(default_factory=set)
    num_left: int = 0
    """Streams that are over: no editor ends its own before it is cancelled."""

    async def greet(self, context: Any) -> None:
        self.users.append(dict(context.invocation_metadata())["x-user-id"])
        self.peers.add(context.peer())
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, self.refuses)

    async def end_stream(self, does: str, sequence: int, context: Any) -> None:
        """End the stream if the script says so; in good order only once."""
        if does == "break":
            await context.abort(grpc.StatusCode.INTERNAL, "it broke")
        if does == "end":
            del self.script[sequence]
            await abort(context, SessionEndedError("the stream ends: it is old", retry_after_ms=0))

    async def Session(
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any
    ) -> AsyncIterator[pb.SessionResponse]:
        await self.greet(context)
        held: int | None = None
        try:
            async for message in request_iterator:
                if message.HasField("cancel"):
                    self.cancelled.append(message.cancel.sequence)
                    if held == message.cancel.sequence:
                        yield _end(held, pb.FINISH_REASON_CANCELLED, tokens=2)
                        held = None
                    continue
                request = message.complete
                self.requests.append(request)
                if held is not None:
                    yield _end(held, pb.FINISH_REASON_SUPERSEDED, tokens=2)
                    held = None
                does = self.script.get(request.sequence, "answer")
                await self.end_stream(does, request.sequence, context)
                if does in {"hold", "along"}:
                    held = request.sequence
                    yield _delta(request.sequence, "held" if does == "hold" else GOES_ON[:3])
                    continue
                for response in _whole(request.sequence, does):
                    yield response
        finally:
            self.num_left += 1


def _whole(sequence: int, does: str) -> Iterator[pb.SessionResponse]:
    match does:
        case "answer":
            yield _delta(sequence, "\n    ")
            yield _delta(sequence, "pass")
            yield _end(sequence, pb.FINISH_REASON_STOP, tokens=4)
        case "empty":
            yield _delta(sequence, "  ")
            yield _end(sequence, pb.FINISH_REASON_LENGTH, tokens=1)
        case "shed":
            yield _end(sequence, pb.FINISH_REASON_SHED)
        case "deadline":
            yield _end(sequence, pb.FINISH_REASON_DEADLINE)
        case "error":
            yield _end(sequence, pb.FINISH_REASON_ERROR, error="a field is bad")


def _delta(sequence: int, text: str) -> pb.SessionResponse:
    return pb.SessionResponse(sequence=sequence, delta=pb.Delta(text=text))


def _end(sequence: int, reason: pb.FinishReason, tokens: int = 0, error: str = "") -> pb.SessionResponse:
    end = pb.End(finish_reason=reason, usage=pb.Usage(completion_tokens=tokens))
    if error:
        end.error.message = error
    return pb.SessionResponse(sequence=sequence, end=end)


@asynccontextmanager
async def serving(editors: Editors) -> AsyncIterator[int]:
    """Serve on a port."""
    server = grpc.aio.server()
    add_CompletionServiceServicer_to_server(editors, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def session_target(editors: Editors, *, cancels_at_key: bool = False) -> AsyncIterator[GrpcTarget]:
    app = web.Application()
    app.router.add_get("/metrics", Counter().show)
    async with serving(editors) as port, TestServer(app) as metrics:
        url = str(metrics.make_url("/metrics"))
        spec = TargetSpec("fake", "grpc", (f"127.0.0.1:{port}",), metrics_url=url)
        async with GrpcTarget(spec, ClientSettings(24, cancels_at_key=cancels_at_key)) as target:
            yield target


@dataclass
class Completions:
    """vLLM's completions API; the first token id of a prompt says what it does: 1 answers, 2 holds, 3 refuses, ..."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_hung_up: int = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        does = body["prompt"][0]
        if does == 3:
            return web.Response(status=400, text="a bad prompt")
        answer = web.StreamResponse()
        await answer.prepare(request)
        if does == 4:
            await answer.write(b'data: {"error": {"message": "it broke"}}\n\n')
        else:
            await answer.write(_chunk("\n  ", 1))
            await answer.write(_chunk("pass" if does != 5 else "", 2))
        if does == 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.num_hung_up += 1
                raise
        await answer.write(b'data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}\n\n')
        await answer.write(b"data: [DONE]\n\n")
        return answer


def _chunk(text: str, tokens: int) -> bytes:
    chunk = {"choices": [{"text": text}], "usage": {"completion_tokens": tokens}}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


@asynccontextmanager
async def http_target(completions: Completions) -> AsyncIterator[HttpTarget]:
    app = web.Application()
    app.router.add_get("/metrics", Counter().show)
    app.router.add_post("/v1/completions", completions.complete)
    server = TestServer(app)
    await server.start_server()
    try:
        url = str(server.make_url("/metrics"))
        spec = TargetSpec("fake", "openai+http", (f"127.0.0.1:{server.port}",), {"model": "m"}, metrics_url=url)
        async with HttpTarget(spec, ClientSettings(24), {"stop_token_ids": [7]}) as target:
            yield target
    finally:
        await server.close()


def outcomes(results: tuple[Result, ...]) -> list[str]:
    return [result.outcome.value for result in results]


@contextmanager
def doing(made: Trace, *token_ids: int) -> Iterator[Trace]:
    """Give a trace's requests prompts that say what becomes of them; openings are answered."""
    ids = iter([(1,), *((each,) for each in token_ids)] * len(made.sessions))
    yield made.with_token_ids(ids)


async def test_session_requests_end_as_the_server_says() -> None:
    kinds = ("answer", "empty", "shed", "deadline", "error")
    editors = Editors({OPENING_SEQUENCE + 1 + place: kind for place, kind in enumerate(kinds)})
    made = trace(*((0.02 * place, 0.02 * place + 0.01) for place in range(len(kinds))))
    async with session_target(editors) as target:
        run = await drive(target, made)
    assert outcomes(run.results) == ["answered", "empty", "shed", "deadline", "error"]
    answered, empty, *_others, failed = run.results
    assert (answered.completion_tokens, empty.completion_tokens) == (4, 1)
    assert answered.first_text_at_s is not None
    assert answered.ended_at_s is not None
    assert answered.sent_at_s <= answered.first_text_at_s <= answered.ended_at_s
    assert empty.ttft_s is None
    assert failed.error == "a field is bad"
    assert run.generated_tokens == 10


async def test_session_editors_just_send_their_next_request() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 0.05), (0.1, 1.0), num_sessions=3))
    assert outcomes(run.results) == ["superseded", "answered"] * 3
    assert all(result.first_text_at_s is not None for result in run.results), "text before the supersede was heard"
    assert run.results[0].completion_tokens == 2
    assert len(set(editors.users)) == 3
    assert {request.mode for request in editors.requests} == {pb.MODE_MULTI_LINE}
    tokens = {(request.sequence > OPENING_SEQUENCE, request.max_tokens) for request in editors.requests}
    assert tokens == {(False, 1), (True, 24)}


async def test_session_editors_may_cancel_at_the_key() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with session_target(editors, cancels_at_key=True) as target:
        run = await drive(target, trace((0.0, 0.05), (0.1, 0.3), (0.4, 1.0)))
    assert outcomes(run.results) == ["hung_up", "answered", "answered"]
    assert editors.cancelled == [OPENING_SEQUENCE + 1], "what has ended is not cancelled"
    assert run.results[0].completion_tokens == 2


async def test_session_editors_cancel_the_last_request_too() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with session_target(editors, cancels_at_key=True) as target:
        run = await drive(target, trace((0.0, 0.05), duration_s=0.1))
    assert outcomes(run.results) == ["hung_up"]


async def test_session_editors_keep_what_the_user_types_along() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "along"})
    made = trace((0.0, 0.05), (0.1, 1.0))
    async with session_target(editors, cancels_at_key=True) as target:
        run = await drive(target, made)
    assert outcomes(run.results) == ["superseded", "answered"]
    assert editors.cancelled == []


async def test_session_stragglers_are_cancelled_and_unanswered() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 0.5), duration_s=0.05), drain_s=0.05)
        again = await drive(target, trace((0.0, 0.5), duration_s=0.05), drain_s=0.05, has_lead_in=False)
        await _until(lambda: editors.num_left == 2)
    assert outcomes(run.results) == outcomes(again.results) == ["unanswered"]
    assert run.results[0].ttft_s is not None
    openings = [request for request in editors.requests if request.sequence == OPENING_SEQUENCE]
    assert len(openings) == 1, "without a lead-in nothing is opened"


async def test_a_broken_stream_fails_what_is_open_and_comes_back() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold", OPENING_SEQUENCE + 2: "break"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 0.05), (0.02, 0.15), (0.4, 1.0), duration_s=0.5))
        assert len(target.reconnects_s) == 1
        assert 0 < target.reconnects_s[0] < 0.4
    assert outcomes(run.results) == ["superseded", "error", "answered"]
    assert "it broke" in run.results[1].error


async def test_a_stream_that_the_server_ends_in_good_order_is_no_failure() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "end", OPENING_SEQUENCE + 3: "end"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 9.0), (0.2, 9.0), (0.4, 9.0), duration_s=0.5))
        assert target.reconnects_s == []
    assert outcomes(run.results) == ["answered"] * 3
    asked = [request.sequence - OPENING_SEQUENCE for request in editors.requests]
    assert asked == [0, 1, 1, 2, 3, 3], "what was not answered is asked again"
    assert len(editors.users) == 3


async def test_an_idle_editor_opens_a_stream_with_its_next_request() -> None:
    made = trace((0.0, 9.0), (1.0, 9.0), num_sessions=3, duration_s=1.1)
    config = make_config("admission.session_idle_s=0.2", "admission.first_request_s=0.2")
    async with run_server(config, _engine) as server:
        spec = TargetSpec("real", "grpc", (server.ready.address,))
        async with GrpcTarget(spec, ClientSettings()) as target:
            run = await drive(target, made, has_lead_in=False)
            assert target.reconnects_s == []
    assert outcomes(run.results) == ["answered"] * 6


def _engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _job: ("pass", "\n"), ServiceTimes(decode_base_s=0.001))


async def test_a_dropped_connection_fails_what_is_open_and_comes_back() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    made = trace((0.0, 9.0), (0.1005, 9.0), (0.5, 9.0), num_sessions=3, duration_s=0.55)
    made = replace(made, events=(Event(0.1, "reconnect", None, 0.1),))
    async with session_target(editors) as target:
        run = await drive(target, made)
        assert len(target.reconnects_s) == 3
    assert outcomes(run.results) == ["error", "error", "answered"] * 3
    assert [result.error for result in run.results[:2]] == ["the connection was dropped", "not connected"]
    assert len(editors.users) == 6


async def test_a_lost_region_is_served_by_the_next_host_and_comes_home() -> None:
    near, far = Editors(), Editors()
    made = trace((0.0, 9.0), (0.4, 9.0), (0.8, 9.0), duration_s=0.85)
    made = replace(made, events=(Event(0.1, "region_loss", 0, 0.5), Event(0.1, "region_loss", 1, 0.5)))
    async with serving(near) as near_port, serving(far) as far_port:
        hosts = (f"127.0.0.1:{near_port}", f"127.0.0.1:{far_port}")
        async with GrpcTarget(TargetSpec("fake", "grpc", hosts), ClientSettings()) as target:
            run = await drive(target, made, has_lead_in=False)
    assert outcomes(run.results) == ["answered"] * 3
    assert [request.sequence - OPENING_SEQUENCE for request in near.requests] == [1, 3]
    assert [request.sequence - OPENING_SEQUENCE for request in far.requests] == [2]
    assert math.isnan(run.generated_tokens), "nobody says"


async def test_no_connection_carries_more_streams_than_servers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "STREAMS_PER_CONNECTION", 4)
    made = trace((0.0, 9.0), num_sessions=18)
    made = replace(made, sessions=tuple(each for each in made.sessions if each.number % 2))  # a worker's share
    async with run_server(make_config("server.max_concurrent_streams=4"), _engine) as server:
        spec = TargetSpec("real", "grpc", (server.ready.address,), {"connections": "2"})
        async with GrpcTarget(spec, ClientSettings()) as target:
            run = await drive(target, made, has_lead_in=False)
            assert target.num_connected == 9
    assert outcomes(run.results) == ["answered"] * 9


@pytest.mark.parametrize("connections", ["1", "2"])
async def test_sessions_may_share_connections(connections: str) -> None:
    editors = Editors()
    async with serving(editors) as port:
        spec = TargetSpec("fake", "grpc", (f"127.0.0.1:{port}",), {"connections": connections})
        async with GrpcTarget(spec, ClientSettings()) as target:
            run = await drive(target, trace((0.0, 9.0), num_sessions=5))
            assert target.num_connected == 5
    assert outcomes(run.results) == ["answered"] * 5
    assert len(set(editors.users)) == 5
    assert len(editors.peers) == int(connections)


async def test_a_deadline_ends_a_session_s_request() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with serving(editors) as port:
        spec = TargetSpec("fake", "grpc", (f"127.0.0.1:{port}",))
        async with GrpcTarget(spec, ClientSettings(deadline_s=0.1)) as target:
            run = await drive(target, trace((0.0, 9.0)), has_lead_in=False)
    assert outcomes(run.results) == ["deadline"]
    assert editors.cancelled == [OPENING_SEQUENCE + 1]


async def test_who_does_not_speak_grpc_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        async with GrpcTarget(TargetSpec("fake", "grpc", (host,)), ClientSettings()) as target:
            with pytest.raises(TargetError, match=f"fake: no connection to {host}"):
                await drive(target, trace((0.0, 9.0)))


async def test_streams_that_do_not_stay_are_said_before_any_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.targets.grpc.CONNECT_S", 0.5)
    editors = Editors(refuses="who are you")
    async with session_target(editors) as target:
        with pytest.raises(TargetError, match="streams end as soon as they are opened: UNAUTHENTICATED: who are you"):
            await drive(target, trace((0.0, 9.0)))
    assert not editors.requests


async def test_an_opening_that_fails_ends_the_run() -> None:
    async with session_target(Editors({OPENING_SEQUENCE: "error"})) as target:
        with pytest.raises(TargetError, match="a field is bad"):
            await drive(target, trace((0.0, 0.05), num_sessions=3))


async def test_capacity_counts_whole_answers_closed_loop() -> None:
    editors = Editors({OPENING_SEQUENCE + 2: "shed"})
    async with session_target(editors) as target:
        made = trace(*((float(at), at + 1.0) for at in range(200)), num_sessions=2)
        rate = await completions_per_s(target, made, 20.0)
        measured = await measure_capacity(target, (1, 2), 0.05, Scenario(name="capacity"))
    assert rate > 10
    assert set(measured.by_concurrency) == {1, 2}
    assert measured.completions_per_s == max(measured.by_concurrency.values()) > 0
    sequences = [
        request.sequence for request in editors.requests if request.session_id == editors.requests[0].session_id
    ]
    assert sequences == sorted(sequences)


async def test_capacity_of_a_target_that_fails_is_an_error() -> None:
    async with session_target(Editors({OPENING_SEQUENCE + 2: "error"})) as target:
        with pytest.raises(TargetError, match="a field is bad"):
            await completions_per_s(target, trace((0.0, 1.0), (1.0, 2.0)), 20.0)


async def test_http_requests_end_as_the_server_says() -> None:
    completions = Completions()
    keys = [(0.02 * place, 5.0) for place in range(4)]
    async with http_target(completions) as target:
        with doing(trace(*keys), 1, 5, 3, 4) as made:
            run = await drive(target, made)
    assert outcomes(run.results) == ["answered", "empty", "error", "error"]
    answered, empty, refused, broken = run.results
    assert answered.completion_tokens == empty.completion_tokens == 3
    assert answered.ttft_s is not None
    assert refused.error == "a bad prompt"
    assert "it broke" in broken.error
    assert run.generated_tokens == 10
    assert completions.bodies[0]["max_tokens"] == 1
    body = completions.bodies[1]
    assert (body["max_tokens"], body["stop_token_ids"], body["prompt"]) == (24, [7], [1])
    assert "cache_salt" not in body


async def test_http_editors_hang_up_at_the_next_key() -> None:
    completions = Completions()
    async with http_target(completions) as target:
        with doing(trace((0.0, 0.1), (0.15, 5.0), num_sessions=2), 2, 1) as made:
            run = await drive(target, made)
            await _until(lambda: completions.num_hung_up == 2)
    assert outcomes(run.results) == ["hung_up", "answered"] * 2
    hung_up = run.results[0]
    assert hung_up.completion_tokens == 2
    assert hung_up.ttft_s is not None
    assert hung_up.ended_at_s is not None
    assert hung_up.ended_at_s >= 0.1


async def test_http_stragglers_are_cancelled_and_unanswered() -> None:
    completions = Completions()
    async with http_target(completions) as target:
        with doing(trace((0.0, 60.0), duration_s=0.05), 2) as made:
            run = await drive(target, made, drain_s=0.05)
        await _until(lambda: completions.num_hung_up == 1)
    assert outcomes(run.results) == ["unanswered"]


async def test_no_server_is_an_error_of_the_request() -> None:
    async with (
        HttpTarget(TargetSpec("fake", "openai+http", ("127.0.0.1:1",)), ClientSettings()) as target,
        target.editors(trace((0.0, 9.0))) as found,
    ):
        record = Record(trace((0.0, 9.0)).sessions[0].requests[0], RunClock())
        found[0].send_nowait(record)
        await record.wait_ended()
    assert record.result().outcome is Outcome.ERROR


class Silent:
    """A target that never says anything, and counts nothing."""

    name = "silent"
    is_connected = True

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.num_connected = 0
        self.reconnects_s: list[float] = []

    @asynccontextmanager
    async def editors(self, made: Trace) -> AsyncIterator[list["Silent"]]:
        yield [self for _ in made.sessions]

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        self.sent.append(record.request.sequence)

    def drop_nowait(self, host_shift: int | None = None) -> None:
        raise AssertionError(host_shift)

    async def generated_tokens(self) -> float:
        return 0.0


class Prompt(Silent):
    """A target that answers at once with what the user goes on to type."""

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        super().send_nowait(record, max_tokens)
        record.text_came(record.request.truth)
        record.end_whole()


async def test_who_types_along_a_completion_asks_nobody() -> None:
    target = Prompt()
    first, second, third = trace((0.0, 9.0), (0.01, 9.0), (0.02, 9.0)).sessions[0].requests
    requests = (replace(first, trigger=Trigger.PREFETCH), second, replace(third, end=third.end + 2))
    made = trace((0.0, 9.0))
    made = replace(made, sessions=(replace(made.sessions[0], requests=requests),))
    ended: list[Record] = []
    callbacks = Callbacks(due=lambda _record: None, ended=ended.append)
    await Driver(made, [target], RunClock(), callbacks, cache_entries=1).drive()
    assert [record.outcome for record in ended] == [Outcome.ANSWERED, Outcome.CACHED, Outcome.CACHED]
    assert [record.text for record in ended] == [GOES_ON, GOES_ON, GOES_ON[2:]]
    assert target.sent == [first.sequence]
    assert [record.is_sent for record in ended] == [True, False, False]


async def test_a_run_that_is_stopped_ends_at_once() -> None:
    target = Silent()
    due: list[Record] = []
    ended: list[Record] = []

    def stop(record: Record) -> None:
        due.append(record)
        driver.stop_nowait()

    driver = Driver(
        trace((0.0, 9.0), (50.0, 99.0), duration_s=60.0), [target], RunClock(), Callbacks(stop, ended.append)
    )
    assert 0 <= await driver.drive() < 30
    assert len(due) == 1
    assert [record.outcome for record in ended] == [Outcome.UNANSWERED]


async def test_requests_go_out_whatever_became_of_those_before() -> None:
    target = Silent()
    keys = [(0.01 * place, 9.0) for place in range(10)]
    run = await drive(target, trace(*keys, duration_s=0.1), drain_s=0.0, has_lead_in=False)
    assert target.sent == [result.request.sequence for result in run.results]
    assert set(outcomes(run.results)) == {"unanswered"}
    assert all(result.lag_s >= 0 for result in run.results), "none goes out before its time"


async def test_lateness_counts() -> None:
    clock = RunClock()
    late = Record(trace((-0.5, 9.0)).sessions[0].requests[0], clock)
    late.text_came("  \n")
    assert not late.has_text
    late.text_came(" x")
    result = late.result()
    assert result.lag_s >= 0.5
    assert result.ttft_s is not None
    assert result.ttft_s >= result.lag_s


async def test_only_the_first_end_counts() -> None:
    record = Record(trace((0.0, 9.0)).sessions[0].requests[0], RunClock())
    record.end(Outcome.HUNG_UP)
    record.end_whole()
    assert record.result().outcome is Outcome.HUNG_UP


def test_a_counter_is_summed_over_its_labels() -> None:
    assert sum_counter(METRICS % 5, ["none_total", "vllm:generation_tokens_total"]) == 7
    with pytest.raises(MetricsError, match="shows no other_total"):
        sum_counter(METRICS % 5, ["other_total"])


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
