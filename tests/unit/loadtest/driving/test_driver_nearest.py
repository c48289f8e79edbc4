"""Editors that use the nearest of several servers: against fake servers, driven by the real driver."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from completion_client import RegionSettings
from loadtest.driving.driver import Callbacks, Driver, drive
from loadtest.driving.worker import make_recorder
from loadtest.stats import RunStats
from loadtest.targets import NEAREST, ClientSettings, TargetError, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from tests.support.fault_proxy import FaultProxy
from tests.unit.loadtest.driving.fake_servers import Editors, outcomes, serving
from tests.unit.loadtest.typed import request, trace

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


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


async def test_servers_that_don_t_answer_are_reported_before_any_load() -> None:
    target = GrpcTarget(TargetSpec("two", NEAREST, ("127.0.0.1:1", "127.0.0.1:2")), ClientSettings())
    with pytest.raises(TargetError, match=r"two: no connection to 127\.0\.0\.1:"):
        async with target:
            await drive(target, trace((0.0, 9.0)), has_lead_in=False)


async def test_a_simulated_loss_of_a_region_does_not_move_them() -> None:
    servers = [Editors(), Editors()]
    made = trace((0.0, 9.0))
    async with serving(servers[0]) as first, serving(servers[1]) as second:
        spec = TargetSpec("two", NEAREST, (f"127.0.0.1:{first}", f"127.0.0.1:{second}"))
        async with GrpcTarget(spec, ClientSettings()) as target, target.editors(made) as (editor,):
            before = target.present()
            editor.drop_nowait(1)
            assert target.present() == before
            assert editor.is_connected
            run = await drive(target, made, has_lead_in=False)
    assert outcomes(run.results) == ["answered"]


async def test_the_editors_of_the_next_run_use_the_connections_of_those_before() -> None:
    made = trace((0.0, 9.0), num_sessions=RegionSettings().users_per_connection)
    async with serving(Editors()) as port, serving(Editors()) as other, FaultProxy(f"127.0.0.1:{port}") as proxy:
        spec = TargetSpec("two", NEAREST, (proxy.address, f"127.0.0.1:{other}"))
        async with GrpcTarget(spec, ClientSettings()) as target:
            for _ in range(3):
                async with target.editors(made):
                    pass
            assert proxy.num_made == 1


async def test_a_record_notices_the_text_of_a_second_server_and_a_second_end() -> None:
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
