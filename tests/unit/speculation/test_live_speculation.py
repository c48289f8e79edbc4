"""The number of speculative tokens of a supervised engine: set, refused, kept over a restart, chosen by the server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from completion_server.engine.interface import EngineStep, GenerationRequest, SpeculationLookup, constant_lookup
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import EngineSettings, SpeculationSettings
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from completion_server.speculation.controller import Controller
from completion_server.speculation.live import LiveSpeculation, SpeculationLockedError, SpeculationMode
from completion_server.speculation.schedule import ScheduleError, SpeculationSchedule
from completion_server.speculation.trial import StartChoice
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock

MAX_K = 4
SEQS = 8
TIMES = ServiceTimes(prefill_base_s=1e-2, decode_base_s=1e-2, draft_s=1e-3)
ROWS = [[1, 2, 4], [3, 8, 1]]


class Bench:
    """A supervised engine and its speculation, in virtual time."""

    def __init__(self, settings: SpeculationSettings, max_k: int) -> None:
        self.engines: list[ScriptedEngine] = []
        self.max_k = max_k
        self.supervised = SupervisedEngine(self._make, EngineSettings(restart_backoff_min_s=1.0), LoopClock())
        self.live = LiveSpeculation(self.supervised, settings, LoopClock(), lambda: 1000 + LoopClock().now())

    def _make(self) -> ScriptedEngine:
        engine = ScriptedEngine(times=TIMES, max_num_seqs=SEQS, num_speculative_tokens=self.max_k)
        self.engines.append(engine)
        return engine

    async def restart(self) -> None:
        self.engines[-1].crash("no memory left")
        num_restarts = self.supervised.num_restarts
        while self.supervised.num_restarts == num_restarts or self.supervised.state is not EngineState.READY:
            await asyncio.sleep(0.1)

    async def ask(self, name: str, num_tokens: int = 40) -> int:
        """Return the draft tokens of a generation."""
        drafted = 0
        async for output in self.supervised.generate(GenerationRequest(name, [1, 2, 3], num_tokens)):
            drafted = output.drafted_tokens
        return drafted


def lookup_of(engine: ScriptedEngine) -> SpeculationLookup:
    assert engine.speculation is not None
    return engine.speculation.lookup


def on_bench(
    scenario: Callable[[Bench], Awaitable[None]],
    settings: SpeculationSettings | None = None,
    max_k: int = MAX_K,
    start: StartChoice | None = None,
) -> None:
    async def main() -> None:
        bench = Bench(settings or SpeculationSettings("fixed"), max_k)
        await bench.supervised.start()
        bench.live.begin(start)
        run = asyncio.create_task(bench.supervised.run())
        await asyncio.sleep(0)
        await scenario(bench)
        run.cancel()
        await asyncio.wait([run])
        await bench.supervised.stop()

    virtual_time.run(main())


def test_it_begins_with_the_k_of_the_engine() -> None:
    async def scenario(bench: Bench) -> None:
        now = bench.live.active
        assert now.schedule == now.operator_schedule == SpeculationSchedule.fixed(MAX_K, SEQS)
        assert (now.mode, now.set_by) == (SpeculationMode.FIXED, "configuration")
        assert (now.max_num_speculative_tokens, now.locked_reason) == (MAX_K, "")

    on_bench(scenario)


def test_it_begins_with_the_configured_schedule() -> None:
    async def scenario(bench: Bench) -> None:
        now = bench.live.active
        assert (now.mode, now.schedule.as_lists(), now.set_by) == (SpeculationMode.SCHEDULE, ROWS, "configuration")

    on_bench(scenario, SpeculationSettings("schedule", tuple(tuple(row) for row in ROWS)))


def test_a_change_is_active_from_the_next_step_on() -> None:
    async def scenario(bench: Bench) -> None:
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

    on_bench(scenario)


def test_an_invalid_schedule_leaves_the_active_one() -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_schedule(ROWS, "ada")
        before = bench.live.active
        with pytest.raises(ScheduleError, match=r"schedule\[1\]: begins at batch size 4 and leaves a gap"):
            bench.live.set_schedule([[1, 2, 4], [4, 8, 1]], "bob")
        with pytest.raises(ScheduleError, match="is over the 4"):
            bench.live.set_fixed(5, "bob")
        with pytest.raises(ScheduleError, match="is over the 4"):
            bench.live.set_auto("bob", [[1, 8, 5]])
        assert bench.live.active == before

    on_bench(scenario)


def test_without_a_draft_model_every_change_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.live.active.locked_reason
        for change in (
            lambda: bench.live.set_fixed(0, ""),
            lambda: bench.live.set_schedule([], ""),
            lambda: bench.live.set_auto(""),
        ):
            with pytest.raises(SpeculationLockedError, match="without a draft model"):
                change()

    on_bench(scenario, max_k=0)


def test_settings_without_an_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(_bench: Bench) -> None:
        pass

    with caplog.at_level(logging.WARNING):
        on_bench(scenario, SpeculationSettings("schedule", ((1, 8, 2),)), max_k=0)
        on_bench(scenario, SpeculationSettings("schedule", ((1, 8, 9),)))
    assert "can't be changed while it runs: the engine was started without a draft model" in caplog.text
    assert "not active: schedule[0]: K = 9 is over the 4" in caplog.text


def test_a_change_survives_a_restart_of_the_engine() -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_schedule([[1, 8, 0]], "ada")
        before = bench.live.active
        await bench.restart()
        assert len(bench.engines) == 2
        assert bench.live.active == before
        assert lookup_of(bench.engines[-1]) == constant_lookup(0, SEQS)
        assert await bench.ask("after") == 0
        assert bench.live.figures().num_tokens >= 40

    on_bench(scenario)


def test_a_change_during_a_restart_is_active_after_it() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engines[-1].crash("no memory left")
        bench.live.set_fixed(1, "ada")
        assert bench.live.active.schedule == SpeculationSchedule.fixed(1, SEQS)
        while bench.supervised.state is not EngineState.READY or len(bench.engines) < 2:
            await asyncio.sleep(0.1)
        assert lookup_of(bench.engines[-1]) == constant_lookup(1, SEQS)

    on_bench(scenario)


def test_warm_ups_are_not_counted() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.live.figures().num_tokens == 0

    on_bench(scenario)


def test_the_servers_choice_survives_a_restart() -> None:
    async def scenario(bench: Bench) -> None:
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

    on_bench(scenario)


def test_the_time_of_the_change_moves_with_every_choice_and_with_nothing_else() -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_auto("ada", [[1, 8, 0]])
        bench.engines[-1].acceptance_rate = 0.9
        asking = asyncio.create_task(bench.ask("long", 20_000))
        seen = [bench.live.active]
        while not asking.done():
            await asyncio.sleep(0.003)
            seen.append(bench.live.active)
        assert seen[-1].schedule.num_speculative_tokens(1) > 0
        for before, now in pairwise(seen):
            assert (before.schedule == now.schedule) == (before.since_unix_ms == now.since_unix_ms)

    on_bench(scenario)


def test_changes_are_refused_before_the_engine_has_started() -> None:
    async def main() -> None:
        bench = Bench(SpeculationSettings(), MAX_K)
        changes: list[Callable[[], None]] = [
            lambda: bench.live.set_fixed(1, "ada"),
            lambda: bench.live.set_schedule(ROWS, "ada"),
            lambda: bench.live.set_auto("ada"),
        ]
        for change in changes:
            with pytest.raises(SpeculationLockedError, match="is starting"):
                change()

    virtual_time.run(main())


def test_the_controller_stops_if_an_engine_comes_back_locked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_auto("ada", ROWS)
        monkeypatch.setattr(Controller, "observe", lambda _self, _step, _now: SpeculationSchedule.fixed(0, SEQS))
        bench.max_k = 0
        await bench.restart()
        await bench.ask("a")
        assert bench.supervised.state is EngineState.READY
        assert "without a draft model" in bench.live.active.locked_reason
        assert (bench.live.active.mode, bench.live.active.schedule.as_lists()) == (
            SpeculationMode.SCHEDULE, [[1, SEQS, 0]],
        )  # fmt: skip

    with caplog.at_level(logging.ERROR):
        on_bench(scenario)
    assert caplog.text.count("no longer chosen by the server") == 1


def test_an_error_of_the_controller_does_not_reach_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_auto("ada", ROWS)

        def fail(_self: Controller, _step: EngineStep, _now: float) -> SpeculationSchedule | None:
            raise ZeroDivisionError

        monkeypatch.setattr(Controller, "observe", fail)
        await bench.ask("a")
        assert bench.supervised.state is EngineState.READY
        assert (bench.live.active.mode, bench.live.active.schedule.as_lists()) == (SpeculationMode.SCHEDULE, ROWS)

    with caplog.at_level(logging.ERROR):
        on_bench(scenario)
    assert "no longer chosen by the server" in caplog.text


def test_k_zero_of_an_operator_switches_the_draft_model_off() -> None:
    async def scenario(bench: Bench) -> None:
        prompt = [1, 2, 3] * 30

        async def cached(name: str) -> int:
            outputs = bench.supervised.generate(GenerationRequest(name, prompt, 8))
            return [output.cached_prompt_tokens async for output in outputs][-1]

        await cached("first")
        bench.live.set_fixed(0, "ada")
        assert await cached("off") > 0
        bench.live.set_fixed(2, "ada")
        assert await cached("on") == 0, "the draft model lacks these prompts"
        assert await cached("on again") > 0

    on_bench(scenario)


def test_it_begins_with_the_choice_of_the_trial() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.live.active.mode is SpeculationMode.AUTO
        assert bench.live.active.schedule.as_lists() == [[1, 2, 3], [3, 8, 0]]

    on_bench(scenario, SpeculationSettings("auto"), start=StartChoice(((1, 2, 3), (3, 8, 0)), ""))


def test_drafts_that_do_not_pay_at_start_are_tried_again_later() -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.ask("at start") == 0
        await asyncio.sleep(599)
        assert await bench.ask("still off") == 0
        await asyncio.sleep(1)
        drafted = [await bench.ask(f"later-{i}") for i in range(20)]
        assert any(drafted)
        assert bench.live.active.schedule.largest > 0, "they pay here"

    on_bench(scenario, SpeculationSettings("auto"), start=StartChoice(((1, SEQS, 0),), ""))


def test_the_active_k_of_a_batch_size_follows_every_change() -> None:
    async def scenario(bench: Bench) -> None:
        live = bench.live
        live.set_schedule(ROWS, "ada")
        assert [live.num_speculative_tokens(num_seqs) for num_seqs in (0, 1, 2, 3, SEQS, 2 * SEQS)] == [
            4,
            4,
            4,
            1,
            1,
            1,
        ]
        live.set_fixed(0, "ada")
        assert live.num_speculative_tokens(1) == 0

    on_bench(scenario)


def test_the_active_k_is_zero_without_a_draft_model() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.live.num_speculative_tokens(1) == 0

    on_bench(scenario, max_k=0)


def test_the_active_k_is_zero_while_drafts_are_switched_off() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.live.num_speculative_tokens(1) == 0

    on_bench(scenario, SpeculationSettings("auto"), start=StartChoice(((1, SEQS, 0),), ""))
