"""The active schedule of a server and its changes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from completion_server.engine.interface import GenerationRequest, Output, SpeculationLookup, constant_lookup
from completion_server.engine.scripted.engine import Script, ScriptedEngine, ServiceTimes, plausible_code
from completion_server.engine.settings import EngineSettings, SpeculationSettings
from completion_server.engine.speculation.controller import Controller
from completion_server.engine.speculation.live import LiveSpeculation, SpeculationLockedError, SpeculationMode
from completion_server.engine.speculation.schedule import SpeculationSchedule
from completion_server.engine.speculation.trial import StartChoice, run_trial
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from loadtest.simulation.virtual_time import LoopClock
from tests.support.cancels import cancel_and_wait
from tests.support.constants import with_constants
from tests.support.scripted import AsyncTest, in_virtual_time, with_first
from tests.support.server import eventually
from tests.support.waits import named_limit

MAX_K = 4
SEQS = 8
TIMES = ServiceTimes(prefill_base_s=1e-2, decode_base_s=1e-2, draft_s=1e-3)
ROWS = [[1, 2, 4], [3, 8, 1]]
ENDS_WITHIN_S = 3600.0


class Bench:
    """A supervised engine and its speculation, in virtual time."""

    def __init__(self, settings: SpeculationSettings, max_k: int, script: Script = plausible_code) -> None:
        self._script = script
        self.engines: list[ScriptedEngine] = []
        self.max_k = max_k
        self.supervised = SupervisedEngine(
            self._make, with_constants(EngineSettings(), restart_backoff_min_s=1.0), LoopClock()
        )
        self.live = LiveSpeculation(self.supervised, settings, LoopClock(), lambda: 1000 + LoopClock().now())

    def _make(self) -> ScriptedEngine:
        engine = ScriptedEngine(self._script, TIMES, max_num_seqs=SEQS, num_speculative_tokens=self.max_k)
        self.engines.append(engine)
        return engine

    @property
    def is_ready(self) -> bool:
        return self.supervised.state is EngineState.READY

    async def restart(self) -> None:
        self.engines[-1].crash("no memory left")
        num_restarts = self.supervised.num_restarts
        await eventually(lambda: self.supervised.num_restarts > num_restarts and self.is_ready, poll_s=0.1)

    async def last(self, request: GenerationRequest) -> Output:
        """Return the last output of a generation."""
        async with named_limit(ENDS_WITHIN_S, f"the end of {request.id}"):
            return [output async for output in self.supervised.generate(request)][-1]

    async def ask(self, name: str, num_tokens: int = 40) -> int:
        """Return the draft tokens of a generation."""
        return (await self.last(GenerationRequest(name, [1, 2, 3], num_tokens))).drafted_tokens


def lookup_of(engine: ScriptedEngine) -> SpeculationLookup:
    assert engine.speculation is not None
    return engine.speculation.lookup


@asynccontextmanager
async def running(
    settings: SpeculationSettings, max_k: int = MAX_K, start: StartChoice | None = None
) -> AsyncIterator[Bench]:
    bench = Bench(settings, max_k)
    async with named_limit(ENDS_WITHIN_S, "the start"):
        await bench.supervised.start()
    bench.live.begin(start)
    run = asyncio.create_task(bench.supervised.run())
    await asyncio.sleep(0)
    yield bench
    await cancel_and_wait(run)
    async with named_limit(ENDS_WITHIN_S, "the stop"):
        await bench.supervised.stop()


def on_bench(settings: SpeculationSettings | None = None, **how: Any) -> Callable[[AsyncTest], Callable[..., None]]:
    return with_first(lambda: running(settings or SpeculationSettings("fixed"), **how))


@on_bench()
async def test_a_change_is_active_from_the_next_step_on(bench: Bench) -> None:
    assert bench.live.figures().num_tokens == 0, "the warm-up is not counted"
    await asyncio.sleep(5)
    asking = asyncio.create_task(bench.ask("a", 400))
    await asyncio.sleep(0.2)
    bench.live.set_fixed(0, "ada@host")
    now = bench.live.active
    assert (now.mode, now.set_by) == (SpeculationMode.FIXED, "ada@host")
    assert now.schedule == SpeculationSchedule.fixed(0, SEQS)
    assert 1_005_000 < now.since_unix_ms < 1_006_000
    drafted = await asking
    assert 0 < drafted < 100
    assert await bench.ask("b") == 0
    bench.live.set_schedule(ROWS, "bob@host")
    assert await bench.ask("c") > 0
    assert bench.live.active.schedule.as_lists() == ROWS


@in_virtual_time
async def test_settings_without_an_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running(SpeculationSettings("schedule", ((1, 8, 2),)), max_k=0):
        assert "can't be changed while it runs: the engine was started without a draft model" in caplog.text
    async with running(SpeculationSettings("schedule", ((1, 8, 9),))):
        assert "not active: schedule[0]: K = 9 is over the 4" in caplog.text


@on_bench()
async def test_a_change_survives_a_restart_of_the_engine(bench: Bench) -> None:
    bench.live.set_schedule([[1, 8, 0]], "ada")
    before = bench.live.active
    await bench.restart()
    assert len(bench.engines) == 2
    assert bench.live.active == before
    assert lookup_of(bench.engines[-1]) == constant_lookup(0, SEQS)
    assert await bench.ask("after") == 0
    assert bench.live.figures().num_tokens >= 40


@on_bench()
async def test_the_servers_choice_survives_a_restart(bench: Bench) -> None:
    bench.live.set_auto("ada", [[1, 8, 4]])
    bench.engines[-1].acceptance_rate = 0.0
    asking = asyncio.create_task(bench.ask("long", 3000))
    await asyncio.sleep(20)
    now = bench.live.active
    assert (now.mode, now.set_by, now.operator_schedule.as_lists()) == (SpeculationMode.AUTO, "ada", [[1, 8, 4]])
    assert now.schedule.num_speculative_tokens(1) == 0
    assert now.since_unix_ms > 1_000_000
    num_drafted = bench.live.figures().num_drafted
    await asyncio.sleep(5)
    assert bench.live.figures().num_drafted > num_drafted  # a probe tries drafts again
    assert bench.live.active == now  # and does not change the choice
    await asking
    await bench.restart()
    assert bench.live.active.schedule.num_speculative_tokens(1) == 0
    bench.live.set_fixed(3, "bob")
    await bench.ask("more", 300)
    assert bench.live.active.mode is SpeculationMode.FIXED
    assert bench.live.active.schedule == SpeculationSchedule.fixed(3, SEQS)


@on_bench()
async def test_the_time_of_the_change_moves_with_every_choice_and_with_nothing_else(bench: Bench) -> None:
    bench.live.set_auto("ada", [[1, 8, 0]])
    bench.engines[-1].acceptance_rate = 0.9
    asking = asyncio.create_task(bench.ask("long", 5000))
    seen = [bench.live.active]
    async with named_limit(ENDS_WITHIN_S, "the end of the generation"):
        while not asking.done():
            await asyncio.sleep(0.003)
            seen.append(bench.live.active)
    assert seen[-1].schedule.num_speculative_tokens(1) > 0
    for before, now in pairwise(seen):
        assert (before.schedule == now.schedule) == (before.since_unix_ms == now.since_unix_ms)


@in_virtual_time
async def test_changes_are_refused_before_the_engine_has_started() -> None:
    bench = Bench(SpeculationSettings(), MAX_K)
    changes: list[Callable[[], None]] = [
        lambda: bench.live.set_fixed(1, "ada"),
        lambda: bench.live.set_schedule(ROWS, "ada"),
        lambda: bench.live.set_auto("ada"),
    ]
    for change in changes:
        with pytest.raises(SpeculationLockedError, match="is starting"):
            change()


@pytest.mark.parametrize("is_locked", [True, False])
@in_virtual_time
async def test_a_controller_that_fails_gives_the_operators_schedule_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_locked: bool
) -> None:
    """It also fails if an engine comes back locked, which then has its own K."""
    async with running(SpeculationSettings("fixed")) as bench:
        bench.live.set_auto("ada", ROWS)
        if is_locked:
            monkeypatch.setattr(Controller, "observe", lambda *_: SpeculationSchedule.fixed(0, SEQS))
            bench.max_k = 0
            await bench.restart()
        else:
            monkeypatch.setattr(Controller, "observe", lambda *_: 1 / 0)
        await bench.ask("a")
        assert bench.supervised.state is EngineState.READY
        now = bench.live.active
        assert now.mode is SpeculationMode.SCHEDULE
        assert now.schedule.as_lists() == ([[1, SEQS, 0]] if is_locked else ROWS)
        assert ("without a draft model" in now.locked_reason) == is_locked
        assert caplog.text.count("no longer chosen by the server") == 1


@on_bench()
async def test_k_zero_of_an_operator_switches_the_draft_model_off(bench: Bench) -> None:
    prompt = [1, 2, 3] * 30

    async def cached(name: str) -> int:
        return (await bench.last(GenerationRequest(name, prompt, 8))).cached_prompt_tokens

    await cached("first")
    bench.live.set_fixed(0, "ada")
    assert await cached("off") > 0
    bench.live.set_fixed(2, "ada")
    assert await cached("on") == 0, "the draft model lacks these prompts"
    assert await cached("on again") > 0


@on_bench(SpeculationSettings("auto"), start=StartChoice(((1, SEQS, 0),), ""))
async def test_drafts_that_do_not_pay_at_start_are_tried_again_later(bench: Bench) -> None:
    assert await bench.ask("at start") == 0
    await asyncio.sleep(599)
    assert await bench.ask("still off") == 0
    await asyncio.sleep(1)
    drafted = [await bench.ask(f"later-{i}") for i in range(20)]
    assert any(drafted)
    assert bench.live.active.schedule.largest > 0, "they pay here"


@on_bench()
async def test_the_active_k_of_a_batch_size_follows_every_change(bench: Bench) -> None:
    live = bench.live
    live.set_schedule(ROWS, "ada")
    found = [live.num_speculative_tokens(num_seqs) for num_seqs in (0, 1, 2, 3, SEQS, 2 * SEQS)]
    assert found == [4, 4, 4, 1, 1, 1]
    live.set_fixed(0, "ada")
    assert live.num_speculative_tokens(1) == 0


def sample(document: int, num_keys: int, num_tokens: int, cache_salt: str) -> GenerationRequest:
    return GenerationRequest(
        f"{document}/{num_keys}", [1 + document] * 64 + [1 + num_keys], num_tokens, cache_salt=cache_salt
    )


@in_virtual_time
async def test_the_controller_keeps_the_choice_of_the_trial_for_the_same_text() -> None:
    """Completions of four tokens end before many drafts do, which the steps do not show."""
    bench = Bench(SpeculationSettings("auto"), MAX_K, lambda _request: ["x"] * 3)
    async with named_limit(ENDS_WITHIN_S, "the start"):
        await bench.supervised.start()
    engine, control = bench.supervised.current, bench.supervised.speculation
    assert control is not None
    async with named_limit(ENDS_WITHIN_S, "the trial"):
        choice = await run_trial(engine, control, sample, LoopClock(), 10.0, random.Random(1))
    assert choice.rows == ((1, SEQS, 2),)
    bench.live.begin(choice)
    assert bench.live.active.set_by == f"configuration, trial at start: {choice.reason}"
    run = asyncio.create_task(bench.supervised.run())
    await asyncio.sleep(0)
    begun = bench.live.active.schedule
    for number in range(500):
        await asyncio.gather(*(bench.ask(f"typed-{caller}-{number}") for caller in range(4)))
    assert bench.live.active.schedule == begun
    await cancel_and_wait(run)
