"""Draft lengths of a supervised engine: set, refused, kept over a restart, chosen by the server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from completion_server.engine.interface import GenerationRequest, Step
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import EngineSettings, SpeculationSettings
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from completion_server.speculation.live import LiveSpeculation, Mode
from completion_server.speculation.schedule import Schedule, ScheduleError, SpeculationFixedError
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock

CEILING = 4
SEQS = 8
TIMES = ServiceTimes(prefill_base_s=1e-2, decode_base_s=1e-2, draft_s=1e-3)
ROWS = [[1, 2, 4], [3, 8, 1]]


class Bench:
    """A supervised engine and its draft lengths, in virtual time."""

    def __init__(self, settings: SpeculationSettings, ceiling: int) -> None:
        self.engines: list[ScriptedEngine] = []
        self.ceiling = ceiling
        self.supervised = SupervisedEngine(self._make, EngineSettings(restart_backoff_min_s=1.0), LoopClock())
        self.live = LiveSpeculation(self.supervised, settings, LoopClock(), lambda: 1000 + LoopClock().now())

    def _make(self) -> ScriptedEngine:
        engine = ScriptedEngine(times=TIMES, max_num_seqs=SEQS, num_speculative_tokens=self.ceiling)
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


def on_bench(
    scenario: Callable[[Bench], Awaitable[None]], settings: SpeculationSettings | None = None, ceiling: int = CEILING
) -> None:
    async def main() -> None:
        bench = Bench(settings or SpeculationSettings(), ceiling)
        await bench.supervised.start()
        bench.live.begin()
        run = asyncio.create_task(bench.supervised.run())
        await asyncio.sleep(0)
        await scenario(bench)
        run.cancel()
        await asyncio.wait([run])
        await bench.supervised.stop()

    virtual_time.run(main())


def test_it_begins_with_what_the_engine_was_started_with() -> None:
    async def scenario(bench: Bench) -> None:
        now = bench.live.in_force
        assert now.schedule == now.table == Schedule.fixed(CEILING, SEQS)
        assert (now.mode, now.ceiling, now.by, now.fixed_because) == (Mode.FIXED, CEILING, "configuration", "")

    on_bench(scenario)


def test_it_begins_with_the_configured_schedule() -> None:
    async def scenario(bench: Bench) -> None:
        now = bench.live.in_force
        assert (now.mode, now.schedule.as_lists(), now.by) == (Mode.SCHEDULE, ROWS, "configuration")

    on_bench(scenario, SpeculationSettings("schedule", tuple(tuple(row) for row in ROWS)))


def test_what_is_set_is_in_force_from_the_next_step_on() -> None:
    async def scenario(bench: Bench) -> None:
        await asyncio.sleep(5)
        asking = asyncio.create_task(bench.ask("a", 400))
        await asyncio.sleep(0.2)
        bench.live.set_fixed(0, "ada@host")
        now = bench.live.in_force
        assert (now.mode, now.by, now.schedule) == (Mode.FIXED, "ada@host", Schedule.fixed(0, SEQS))
        assert 1_005_000 < now.since_unix_ms < 1_006_000
        drafted = await asking
        assert 0 < drafted < 100
        assert await bench.ask("b") == 0
        bench.live.set_schedule(ROWS, "bob@host")
        assert await bench.ask("c") > 0
        assert bench.live.in_force.schedule.as_lists() == ROWS

    on_bench(scenario)


def test_what_cant_be_used_leaves_the_old_in_force() -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_schedule(ROWS, "ada")
        before = bench.live.in_force
        with pytest.raises(ScheduleError, match=r"schedule\[1\]: begins at batch size 4 and leaves a gap"):
            bench.live.set_schedule([[1, 2, 4], [4, 8, 1]], "bob")
        with pytest.raises(ScheduleError, match="is over the 4"):
            bench.live.set_fixed(5, "bob")
        with pytest.raises(ScheduleError, match="is over the 4"):
            bench.live.set_auto("bob", [[1, 8, 5]])
        assert bench.live.in_force == before

    on_bench(scenario)


def test_without_a_draft_nothing_can_be_set() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.live.in_force.fixed_because
        for change in (
            lambda: bench.live.set_fixed(0, ""),
            lambda: bench.live.set_schedule([], ""),
            lambda: bench.live.set_auto(""),
        ):
            with pytest.raises(SpeculationFixedError, match="without a draft model"):
                change()

    on_bench(scenario, ceiling=0)


def test_a_configuration_that_has_no_effect_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(_bench: Bench) -> None:
        pass

    with caplog.at_level(logging.WARNING):
        on_bench(scenario, SpeculationSettings("auto"), ceiling=0)
        on_bench(scenario, SpeculationSettings("schedule", ((1, 8, 9),)))
    assert "can't be changed while it runs: the engine was started without a draft model" in caplog.text
    assert "not in force: schedule[0]: K = 9 is over the 4" in caplog.text


def test_what_was_set_survives_a_restart_of_the_engine() -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_schedule([[1, 8, 0]], "ada")
        before = bench.live.in_force
        await bench.restart()
        assert len(bench.engines) == 2
        assert bench.live.in_force == before
        assert bench.engines[-1].speculation.as_lists() == [[1, 8, 0]]
        assert await bench.ask("after") == 0
        assert bench.live.figures().num_tokens >= 40

    on_bench(scenario)


def test_what_is_set_while_the_engine_restarts_is_in_force_when_it_is_back() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engines[-1].crash("no memory left")
        bench.live.set_fixed(1, "ada")
        assert bench.live.in_force.schedule == Schedule.fixed(1, SEQS)
        while bench.supervised.state is not EngineState.READY or len(bench.engines) < 2:
            await asyncio.sleep(0.1)
        assert bench.engines[-1].speculation == Schedule.fixed(1, SEQS)

    on_bench(scenario)


def test_warm_ups_are_not_counted() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.live.figures().num_tokens == 0

    on_bench(scenario)


def test_the_server_chooses_what_pays_and_keeps_it_over_a_restart() -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_auto("ada", [[1, 8, 4]])
        bench.engines[-1].acceptance_rate = 0.0
        asking = asyncio.create_task(bench.ask("long", 3000))
        await asyncio.sleep(20)
        now = bench.live.in_force
        assert (now.mode, now.by, now.table.as_lists()) == (Mode.AUTO, "ada", [[1, 8, 4]])
        assert now.schedule.num_draft_tokens(1) == 0
        assert now.since_unix_ms > 1_000_000
        num_drafted = bench.live.figures().num_drafted
        await asyncio.sleep(5)
        assert bench.live.figures().num_drafted > num_drafted  # a burst tries drafts again
        assert bench.live.in_force == now  # and is no choice
        await asking
        await bench.restart()
        assert bench.live.in_force.schedule.num_draft_tokens(1) == 0
        bench.live.set_fixed(3, "bob")
        await bench.ask("more", 300)
        assert (bench.live.in_force.mode, bench.live.in_force.schedule) == (Mode.FIXED, Schedule.fixed(3, SEQS))

    on_bench(scenario)


def test_since_when_changes_with_every_choice_and_with_nothing_else() -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_auto("ada", [[1, 8, 0]])
        bench.engines[-1].acceptance_rate = 0.9
        asking = asyncio.create_task(bench.ask("long", 20_000))
        seen = [bench.live.in_force]
        while not asking.done():
            await asyncio.sleep(0.003)
            seen.append(bench.live.in_force)
        assert seen[-1].schedule.num_draft_tokens(1) > 0
        for before, now in pairwise(seen):
            assert (before.schedule == now.schedule) == (before.since_unix_ms == now.since_unix_ms)

    on_bench(scenario)


def test_nothing_can_be_set_before_the_engine_has_started() -> None:
    async def main() -> None:
        bench = Bench(SpeculationSettings(), CEILING)
        changes: list[Callable[[], None]] = [
            lambda: bench.live.set_fixed(1, "ada"),
            lambda: bench.live.set_schedule(ROWS, "ada"),
            lambda: bench.live.set_auto("ada"),
        ]
        for change in changes:
            with pytest.raises(SpeculationFixedError, match="is starting"):
                change()

    virtual_time.run(main())


def test_a_chooser_whose_engine_came_back_fixed_gives_up_and_the_engine_lives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_auto("ada", ROWS)

        def refuse(_schedule: Schedule) -> None:
            raise SpeculationFixedError("the engine does not follow the table of draft lengths")

        monkeypatch.setattr(bench.supervised, "set_speculation", refuse)
        monkeypatch.setattr(bench.live._controller, "hear", lambda _step, _now: Schedule.fixed(0, SEQS))
        await bench.ask("a")
        assert bench.supervised.state is EngineState.READY
        assert bench.live.in_force.mode is Mode.SCHEDULE

    with caplog.at_level(logging.ERROR):
        on_bench(scenario)
    assert caplog.text.count("no longer chosen by the server") == 1


def test_a_fault_of_the_chooser_does_not_reach_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.live.set_auto("ada", ROWS)

        def fail(_step: Step, _now: float) -> Schedule | None:
            raise ZeroDivisionError

        monkeypatch.setattr(bench.live._controller, "hear", fail)
        await bench.ask("a")
        assert bench.supervised.state is EngineState.READY
        assert (bench.live.in_force.mode, bench.live.in_force.schedule.as_lists()) == (Mode.SCHEDULE, ROWS)

    with caplog.at_level(logging.ERROR):
        on_bench(scenario)
    assert "no longer chosen by the server" in caplog.text
