"""The capacity benchmark: its contestants on a real server whose engine is scripted."""

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest.bench.capacity import OURS, replay_pauses
from loadtest.bench.runner.server import SERVES_ALL, server_contestant
from loadtest.bench.scheduler import CONCURRENCIES, measure_capacity
from loadtest.targets import ClientSettings
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from tests.support.server import make_config, run_server

SETTINGS = ("cache.enabled=true", "admission.user_requests_per_s=0", "scheduling.max_slots=8")


class Served:
    """A server in this process, which is never suspended."""

    name = OURS
    process = None

    def __init__(self, address: str) -> None:
        self.ready = {"address": address}


@pytest.mark.parametrize("scope", ["user", "tenant"])
async def test_no_run_finds_the_completions_of_another(scope: str) -> None:
    trace = make_trace(Scenario.of({"name": "capacity", "sessions": 3, "duration_s": 6, "seed": 3}))
    config = make_config(*SETTINGS, f"engine.cache_scope={scope}")
    async with run_server(config, lambda: ScriptedEngine(times=ServiceTimes(decode_base_s=1e-3))) as server:
        contestant = server_contestant(Served(server.ready.address), ClientSettings())  # type: ignore[arg-type]
        answered = []
        for run in ("1", "2", "2"):
            hits = server.count("completion_cache_hits_total", level="local")
            async with contestant.connect(run) as target:
                found = await replay_pauses(target, trace)
            answered.append((found, server.count("completion_cache_hits_total", level="local") - hits))
    (first, of_none), (second, of_the_first), (_third, of_the_second) = answered
    assert first == second != set()
    assert of_none == of_the_first
    if scope == "tenant":
        assert of_the_second > of_the_first, "a run of the same name is another one's neighbour"


async def test_the_capacity_of_an_engine_is_measured_closed_loop() -> None:
    settings = (*SERVES_ALL, "scheduling.supersede=false", "scheduling.max_slots=4")
    scenario = Scenario.of({"name": "scheduler", "editor": {"max_tokens": 8}})
    async with run_server(
        make_config(*settings), lambda: ScriptedEngine(times=ServiceTimes(decode_base_s=1e-3))
    ) as server:
        found = await measure_capacity(server.ready.address, scenario, 0.2)
    assert list(found) == list(CONCURRENCIES)
    assert min(found.values()) > 0
