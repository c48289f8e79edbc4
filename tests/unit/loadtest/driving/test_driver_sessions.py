"""The open-loop driver against real gRPC servers on loopback, also to the nearest of several: `Session` streams."""

import asyncio
import math
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import RegionSettings
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest import targets
from loadtest.driving.driver import Callbacks, Driver, Run, drive
from loadtest.driving.worker import make_recorder
from loadtest.stats import RunStats
from loadtest.targets import NEAREST, ClientSettings, TargetError, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import OPENING_SEQUENCE, Event, Trace
from tests.support.fault_proxy import FaultProxy
from tests.support.server import make_config, run_server
from tests.unit.loadtest.driving.fake_servers import Editors, outcomes, serving, session_target
from tests.unit.loadtest.typed import request, trace

FIRST, SECOND, THIRD, FOURTH = range(OPENING_SEQUENCE + 1, OPENING_SEQUENCE + 5)
unclosed = pytest.mark.filterwarnings("ignore::ResourceWarning")


async def test_session_requests_end_as_the_server_says() -> None:
    kinds = ("answer", "empty", "shed", "deadline", "error")
    editors = Editors({FIRST + place: kind for place, kind in enumerate(kinds)})
    made = trace(*((0.02 * place, 0.02 * place + 0.01) for place in range(len(kinds))))
    async with session_target(editors) as target:
        run = await drive(target, made)
    assert outcomes(run.results) == ["answered", "empty", "shed", "deadline", "error"]
    answered, empty, *_others, failed = run.results
    assert (answered.completion_tokens, empty.completion_tokens, run.generated_tokens) == (4, 1, 10)
    assert answered.sent_at_s <= (answered.first_text_at_s or 0) <= (answered.ended_at_s or 0)
    assert (empty.ttft_s, failed.error) == (None, "a field is bad")


@pytest.mark.parametrize(
    ("script", "keys", "cancels", "ended", "cancelled"),
    [
        ({FIRST: "hold"}, [(0.0, 0.05), (0.1, 1.0)], False, "superseded answered", []),
        (
            {FIRST: "hold", FOURTH: "hold"},
            [(0.0, 0.05), (0.1, 0.3), (0.4, 1.0), (0.5, 0.55)],
            True,
            "hung_up answered answered hung_up",
            [FIRST, FOURTH],
        ),
        ({FIRST: "along"}, [(0.0, 0.05), (0.1, 1.0)], True, "superseded answered", []),
        ({FIRST: "end", THIRD: "end"}, [(0.0, 9.0), (0.2, 9.0), (0.4, 9.0)], False, "answered answered answered", []),
    ],
    ids=["the next request", "cancelled at the key", "typed along", "a stream ended in good order"],
)
async def test_a_request_ends_by_what_its_user_types_and_by_its_stream(
    script: dict[int, str], keys: list[tuple[float, float]], cancels: bool, ended: str, cancelled: list[int]
) -> None:
    editors = Editors(dict(script))
    async with session_target(editors, cancels_at_key=cancels) as target:
        run = await drive(target, trace(*keys, num_sessions=3, duration_s=0.6))
        assert target.reconnects_s == []
    assert outcomes(run.results) == ended.split() * 3
    assert sorted(editors.cancelled) == sorted(cancelled * 3), "an ended request is not cancelled"
    assert all(result.first_text_at_s is not None for result in run.results), "text before the end was heard"
    assert len(set(editors.users)) == 3
    assert {request.mode for request in editors.requests} == {pb.MODE_MULTI_LINE}
    tokens = {(request.sequence > OPENING_SEQUENCE, request.max_tokens) for request in editors.requests}
    assert tokens == {(False, 1), (True, 24)}


async def test_a_lost_stream_fails_its_open_request_and_is_reopened() -> None:
    editors = Editors({FIRST: "hold", SECOND: "break"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 0.05), (0.02, 0.15), (0.4, 1.0), duration_s=0.5))
        assert len(target.reconnects_s) == 1
    assert outcomes(run.results) == ["superseded", "error", "answered"]
    assert "it broke" in run.results[1].error
    editors = Editors({FIRST: "hold"})
    made = trace((0.0, 9.0), (0.1005, 9.0), (0.5, 9.0), num_sessions=3, duration_s=0.55)
    async with session_target(editors) as target:
        run = await drive(target, replace(made, events=(Event(0.1, "reconnect", None, 0.1),)))
        assert len(target.reconnects_s) == 3
    assert outcomes(run.results) == ["error", "error", "answered"] * 3
    assert [result.error for result in run.results[:2]] == ["the connection was dropped", "not connected"]


async def test_a_lost_region_is_served_by_the_next_host_and_comes_home() -> None:
    near, far = Editors(), Editors()
    made = trace((0.0, 9.0), (0.4, 9.0), (0.8, 9.0), duration_s=0.85)
    made = replace(made, events=(Event(0.1, "region_loss", 0, 0.5), Event(0.1, "region_loss", 1, 0.5)))
    async with serving(near) as near_port, serving(far) as far_port:
        run = await driven(made, near_port, far_port)
    assert outcomes(run.results) == ["answered"] * 3
    assert [request.sequence for request in near.requests] == [FIRST, THIRD]
    assert [request.sequence for request in far.requests] == [SECOND]
    assert math.isnan(run.generated_tokens), "the target does not report it"


async def driven(made: Trace, *ports: int, settings: ClientSettings | None = None, **options: str) -> Run:
    spec = TargetSpec("fake", "grpc", tuple(f"127.0.0.1:{port}" for port in ports), options)
    async with GrpcTarget(spec, settings or ClientSettings()) as target:
        return await drive(target, made, has_lead_in=False)


def _engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: ("pass", "\n"), ServiceTimes(decode_base_s=0.001))


async def test_an_idle_editor_opens_a_stream_with_its_next_request() -> None:
    made = trace((0.0, 9.0), (1.0, 9.0), num_sessions=3, duration_s=1.1)
    async with run_server(
        make_config("admission.session_idle_s=0.2", "admission.first_request_s=0.2"), _engine
    ) as server:
        run = await driven(made, int(server.ready.address.rpartition(":")[2]))
    assert outcomes(run.results) == ["answered"] * 6


async def test_no_connection_carries_more_streams_than_servers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "STREAMS_PER_CONNECTION", 4)
    made = trace((0.0, 9.0), num_sessions=18)
    made = replace(made, sessions=tuple(each for each in made.sessions if each.number % 2))  # a worker's share
    async with run_server(make_config("server.max_concurrent_streams=4"), _engine) as server:
        run = await driven(made, int(server.ready.address.rpartition(":")[2]), connections="2")
    assert outcomes(run.results) == ["answered"] * 9


async def test_a_deadline_ends_a_session_s_request() -> None:
    editors = Editors({FIRST: "hold"})
    async with serving(editors) as port:
        run = await driven(trace((0.0, 9.0)), port, settings=ClientSettings(deadline_s=0.1))
    assert outcomes(run.results) == ["deadline"]
    assert editors.cancelled == [FIRST]
    assert 0 < editors.requests[-1].timeout_ms <= 100


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Editors(refuses="who are you"),
            "streams end as soon as they are opened: UNAUTHENTICATED: who are you",
        ),
        (lambda: Editors({OPENING_SEQUENCE: "error"}), "a field is bad"),
    ],
    ids=["streams do not stay open", "an opening fails"],
)
async def test_a_target_that_can_not_be_used_is_reported_before_any_load(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Editors], said: str
) -> None:
    monkeypatch.setattr("loadtest.targets.grpc.CONNECT_S", 0.5)
    editors = make()
    async with session_target(editors) as target:
        with pytest.raises(TargetError, match=said):
            await drive(target, trace((0.0, 0.05), num_sessions=3))
    assert all(request.sequence == OPENING_SEQUENCE for request in editors.requests)


async def test_a_server_without_grpc_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.targets.grpc.CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TargetError, match=f"fake: no connection to 127.0.0.1:{port}"):
            await driven(trace((0.0, 9.0)), port)


@unclosed
async def test_editors_go_elsewhere_when_their_server_goes_and_are_counted_where_they_are() -> None:
    servers = [Editors(), Editors()]
    made = trace((0.0, 9.0), (0.6, 9.0), num_sessions=6, duration_s=0.7)
    ended: list[Record] = []
    async with AsyncExitStack() as first, serving(servers[1]) as second_port:
        first_port = await first.enter_async_context(serving(servers[0]))
        hosts = (f"127.0.0.1:{first_port}", f"127.0.0.1:{second_port}")
        spec = TargetSpec("two", NEAREST, hosts)
        async with GrpcTarget(spec, ClientSettings()) as target, target.editors(made) as editors:
            at_start = target.present()
            clock = RunClock()
            driver = Driver(made, editors, clock, Callbacks(due=lambda _record: None, ended=ended.append))
            await _drive_and_stop(driver, clock, first)
            at_end = target.present()
    assert sum(at_start.values()) == 6
    assert at_end == {1: 6}
    assert {record.outcome for record in ended} == {Outcome.ANSWERED}
    assert {record.region for record in ended if record.request.intended_at_s > 0.5} == {1}
    assert {record.region for record in ended if record.request.intended_at_s < 0.5} <= {0, 1}
    assert sum(record.num_duplicates for record in ended) == 0


async def _drive_and_stop(driver: Driver, clock: RunClock, first: AsyncExitStack) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.drive())
        await clock.sleep_until(0.3)
        await first.aclose()


@unclosed
async def test_the_editors_of_the_next_run_use_the_connections_of_those_before() -> None:
    made = trace((0.0, 9.0), num_sessions=RegionSettings().users_per_connection)
    async with serving(Editors()) as port, serving(Editors()) as other, FaultProxy(f"127.0.0.1:{port}") as proxy:
        spec = TargetSpec("two", NEAREST, (proxy.address, f"127.0.0.1:{other}"))
        async with GrpcTarget(spec, ClientSettings()) as target:
            for _ in range(3):
                async with target.editors(made):
                    pass
            assert proxy.num_made == 1


async def test_a_record_notices_the_text_of_a_second_server() -> None:
    record = Record(request(), RunClock())
    record.routed(0, 1)
    record.routed(1, 2)
    assert record.num_duplicates == 0, "no text had come"
    record.text_came("a")
    record.routed(1, 2)
    assert record.num_duplicates == 0
    record.routed(0, 2)
    assert (record.num_duplicates, record.region, record.num_sent) == (1, 0, 2)


async def test_requests_count_for_the_region_that_they_reached() -> None:
    scenario = Scenario.of({"name": "x", "regions": [{"name": "us", "share": 0.5}, {"name": "eu", "share": 0.5}]})
    made = trace((0.0, 9.0))
    stats = RunStats("ours", 1.0, 1.0)
    spec = TargetSpec("ours", NEAREST, ("a:1", "b:2"))
    recorder = make_recorder(stats, made, scenario, spec)
    for region in (1, None):
        record = Record(request(), RunClock(), recorder.ended)
        recorder.due(record)
        if region is not None:
            record.routed(region, 2)
        record.end_whole()
    recorder.present(0.5, {0: 1, 1: 4})
    (piece,) = stats.slices
    counted = {name: count for name, count in piece.counters.items() if name.startswith("region/")}
    assert counted["region/eu/intended"] == counted["region/nowhere/intended"] == 1
    assert (counted["region/us/present"], counted["region/eu/present"]) == (1, 4)
    assert "region/us/intended" not in counted
    assert piece.counters["resent"] == 1
    hosts = RunStats("ours", 1.0, 1.0)
    make_recorder(hosts, made, Scenario.of({"name": "x"}), spec).present(0.5, {1: 3})
    assert hosts.slices[0].counters == {"region/b:2/present": 3}, "the scenario has no names for the hosts"
