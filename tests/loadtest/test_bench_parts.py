"""The benchmarks of capacity and of the CPU time of a request, in small, and a server that rests between its turns."""

import asyncio
import shutil
from dataclasses import replace

import psutil
import pytest
from tokenizers import Tokenizer

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.loading import choose_template
from loadtest.bench.capacity import OURS, replay_pauses
from loadtest.bench.cpu import H2loadError, Sizes, in_process, with_h2load
from loadtest.bench.runner.contest import editors
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess, server_contestant
from loadtest.bench.scheduler import CONCURRENCIES, measure_capacity
from loadtest.targets import ClientSettings
from loadtest.traffic.scenario import Scenario, ScenarioError
from loadtest.traffic.trace import make_trace
from tests.support.models import ROOT
from tests.support.server import make_config, run_server
from tests.support.vocabularies import EMBEDDED

CONFIG = ROOT / "deploy" / "local" / "server.toml"
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


def test_the_front_end_and_its_prompts_are_measured_in_process() -> None:
    scenario = editors(sessions=20, requests_per_s=20, seconds=5, seed=0)
    tokenizer = Tokenizer.from_file(str(EMBEDDED))
    template = choose_template(tokenizer.get_vocab(), "embedded")
    found = in_process(make_trace(scenario), scenario, PromptBuilder(tokenizer, template, max_prompt_tokens=1024), 1)
    assert found["front_end_cpu_ms"] > found["prompt_cpu_ms"] > 0


def test_a_rate_that_the_editors_cannot_send_is_refused() -> None:
    with pytest.raises(ScenarioError, match="requests-per-s: 10 editors ask at most"):
        editors(sessions=10, requests_per_s=1000, seconds=5, seed=0)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed (Debian: nghttp2-client)")
def test_h2load_measures_only_requests_that_were_answered() -> None:
    sizes = Sizes(config=CONFIG, rounds=1, seconds=1.0)
    found = with_h2load(sizes)
    assert min(found.values()) > 0
    assert found["h2load_ratio_to_bare"] == found["h2load_cpu_ms"] / found["h2load_bare_cpu_ms"]
    with pytest.raises(H2loadError, match="did not answer all requests"):
        with_h2load(replace(sizes, overrides=("limits.max_prefix_bytes=1000",)))


HANG_TIMEOUT_S = 2.0
NUM_CALLERS, NUM_REQUESTS = 4, 16


def processes_of(server: ServerProcess) -> set[int]:
    return {each.pid for each in psutil.Process(server.pid).children(recursive=True)}


async def ask(address: str, caller: int) -> list[str]:
    async with CompletionClient(address, user=f"user-{caller}") as client:
        requests = [
            pb.CompleteRequest(prefix=f"def add_{caller}_{number}(a, b):\n    return ", max_tokens=48)
            for number in range(NUM_REQUESTS)
        ]
        return [(await client.complete(each, timeout_s=60)).finish_reason or "" for each in requests]


@pytest.mark.serial
@pytest.mark.full
async def test_a_server_that_rests_keeps_its_engine_and_its_requests() -> None:
    settings = (*SERVES_ALL, f"engine.hang_timeout_s={HANG_TIMEOUT_S}", "engine.num_speculative_tokens=0")
    async with ServerProcess(CONFIG, settings) as server:
        processes = processes_of(server)
        asked = asyncio.gather(*(ask(server.ready["address"], caller) for caller in range(NUM_CALLERS)))
        for _ in range(3):
            await asyncio.sleep(0.1)
            server.process.pause()
            await asyncio.sleep(2 * HANG_TIMEOUT_S)
            server.process.resume()
        assert {reason for each in await asked for reason in each} <= {"stop", "length"}
        assert processes_of(server) == processes
