"""The supervisor in virtual time: the detection of failures, and the recovery."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from completion_server.core.errors import SuspectedPromptError
from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import EngineSettings
from completion_server.engine.start_times import StartEstimate
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from loadtest.simulation import virtual_time
from tests.support.cancels import cancel_and_wait

POISON = [6, 6, 6]


def code(request: GenerationRequest) -> Iterator[str]:
    """Yield words without end; raise an error for the poison."""
    if request.prompt_token_ids == POISON:
        raise RuntimeError("this prompt is too much")
    while True:
        yield " x"


class ShiftedClock:
    """The loop's time, plus the time in which the process was stopped."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.shift_s


class ComputingEngine(ScriptedEngine):
    """An engine whose processes have used `cpu_s` seconds of CPU time."""

    cpu_rate = 0.0
    """CPU seconds that its processes use in each second."""

    def cpu_seconds(self) -> float | None:
        return asyncio.get_running_loop().time() * self.cpu_rate


@dataclass
class Bench:
    """A supervised scripted engine, and the engines before it."""

    settings: EngineSettings
    times: ServiceTimes
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    engines: list[ComputingEngine] = field(default_factory=list)
    prepare: Callable[[ComputingEngine], None] = lambda _engine: None

    def __post_init__(self) -> None:
        self.supervised = SupervisedEngine(self._make, self.settings, self.clock)

    def _make(self) -> ComputingEngine:
        engine = ComputingEngine(code, self.times)
        self.prepare(engine)
        self.engines.append(engine)
        return engine

    @property
    def engine(self) -> ComputingEngine:
        return self.engines[-1]

    def generate(self, name: str = "a", prompt: list[int] | None = None, num_tokens: int = 5) -> AsyncGenerator[Output]:
        return self.supervised.generate(GenerationRequest(name, prompt or [1, 2, 3], num_tokens))

    async def ask(self, name: str = "a", prompt: list[int] | None = None, num_tokens: int = 5) -> int:
        """Return the number of generated tokens."""
        return sum([output.num_tokens async for output in self.generate(name, prompt, num_tokens)])

    async def until_ready(self) -> None:
        while self.supervised.state is not EngineState.READY:
            await asyncio.sleep(0.01)

    async def until_failed(self) -> float:
        """Return after how many seconds."""
        began_at = asyncio.get_running_loop().time()
        while self.supervised.state is EngineState.READY:
            await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - began_at


STEP_S = 0.01


def on_bench(
    scenario: Callable[[Bench], Awaitable[None]], step_s: float = STEP_S, start_s: float = 0.0, **settings: float
) -> None:
    """Run a scenario on a supervised engine, by default without warm-up and heartbeats."""

    async def main() -> None:
        values = {"warm_up": False, "heartbeat_s": 0.0, "restart_backoff_min_s": 1.0} | settings
        bench = Bench(
            EngineSettings(**values), ServiceTimes(start_s=start_s, decode_base_s=step_s, prefill_base_s=step_s)
        )  # type: ignore[arg-type]
        await bench.supervised.start()
        run = asyncio.create_task(bench.supervised.run())
        await asyncio.sleep(0)
        await scenario(bench)
        await cancel_and_wait(run)
        await bench.supervised.stop()

    virtual_time.run(main())


def num_tasks() -> int:
    """Return how many tasks are in memory, done or not."""
    gc.collect()
    return sum(issubclass(type(one), asyncio.Task) for one in gc.get_objects())


def test_a_heartbeat_leaves_nothing_behind() -> None:
    async def scenario(bench: Bench) -> None:
        await asyncio.sleep(100)
        before = num_tasks()
        await asyncio.sleep(1000)
        assert bench.engine.stats().num_generated_tokens > 500
        assert num_tasks() <= before + 1

    on_bench(scenario, heartbeat_s=1.0)


def test_the_end_of_a_restart_is_predicted_from_the_last_start() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.supervised.start_s == pytest.approx(40.0)
        assert bench.supervised.remaining_start_s() == pytest.approx(40.0)  # of the start after a failure
        bench.engine.crash("out of memory")
        await bench.until_failed()
        assert bench.supervised.remaining_start_s() == pytest.approx(41.0, abs=0.1)  # the back-off comes first
        await asyncio.sleep(21.0)
        assert bench.supervised.state is EngineState.STARTING
        assert bench.supervised.remaining_start_s() == pytest.approx(20.0, abs=0.1)
        await bench.until_ready()

    on_bench(scenario, start_s=40.0, restart_backoff_min_s=1.0)


def test_a_start_that_takes_longer_than_the_last_one_has_no_time_left() -> None:
    estimate = StartEstimate(10.0)
    estimate.begin(100.0)
    assert estimate.remaining_s(104.0) == 6.0
    assert estimate.remaining_s(130.0) == 0.0
    assert estimate.end(135.0) == 35.0
    assert estimate.remaining_s(140.0) == 35.0


def test_nothing_is_predicted_before_a_start_was_seen() -> None:
    estimate = StartEstimate()
    estimate.begin(0.0)
    assert estimate.remaining_s(1.0) is None


def test_a_watch_that_was_stopped_itself_does_not_blame_the_engine() -> None:
    async def scenario(bench: Bench) -> None:
        asking = asyncio.create_task(bench.ask(num_tokens=4))
        await asyncio.sleep(1.5)
        bench.clock.shift_s += 3600.0
        assert await asking == 4
        assert bench.supervised.num_restarts == 0

    on_bench(scenario, step_s=1.0)


def test_a_hang_is_found_by_a_watch_that_always_comes_late() -> None:
    async def scenario(bench: Bench) -> None:
        asking = asyncio.create_task(bench.ask(num_tokens=4))
        bench.engine.hang()
        for _ in range(20):
            await asyncio.sleep(0.5)
            bench.clock.shift_s += 60.0
        with pytest.raises(EngineDeadError):
            await asking

    on_bench(scenario)


def test_an_engine_that_still_computes_gets_as_long_as_a_step_may_take() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.cpu_rate = 0.5
        assert await bench.ask(num_tokens=2) == 2
        assert bench.supervised.num_restarts == 0

    on_bench(scenario, step_s=40.0)


def test_an_engine_that_spins_for_ever_is_replaced() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.cpu_rate = 2.0
        bench.engine.hang()
        asking = asyncio.create_task(bench.ask())
        assert 60.0 <= await bench.until_failed() < 62.0
        with pytest.raises(EngineDeadError):
            await asking

    on_bench(scenario)


def test_an_engine_that_waits_for_ever_is_replaced_sooner() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.cpu_rate = 0.01
        bench.engine.hang()
        asking = asyncio.create_task(bench.ask())
        assert 10.0 <= await bench.until_failed() < 11.0
        with pytest.raises(EngineDeadError):
            await asking

    on_bench(scenario)


def test_an_engine_that_hangs_in_its_warm_up_is_replaced() -> None:
    async def scenario(bench: Bench) -> None:
        bench.prepare = lambda engine: engine.hang() if len(bench.engines) == 1 else None
        bench.engine.crash()
        began_at = bench.clock.now()
        await bench.until_failed()
        await bench.until_ready()
        assert len(bench.engines) == 3
        assert bench.clock.now() - began_at < 70

    on_bench(scenario, warm_up=True)


def test_a_slow_warm_up_is_no_hang() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.supervised.state is EngineState.READY
        assert bench.supervised.num_restarts == 0

    on_bench(scenario, step_s=50.0, warm_up=True)


def test_the_back_off_grows_over_lives_that_are_short() -> None:
    async def scenario(bench: Bench) -> None:
        waits = []
        for _ in range(7):
            bench.engine.crash()
            await bench.until_failed()
            began_at = bench.clock.now()
            await bench.until_ready()
            waits.append(round(bench.clock.now() - began_at))
            await asyncio.sleep(5)
        assert waits == [1, 2, 4, 8, 16, 30, 30]

    on_bench(scenario)


def test_the_back_off_is_forgotten_after_a_good_life() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(4):
            bench.engine.crash()
            await bench.until_failed()
            await bench.until_ready()
        await asyncio.sleep(61)
        bench.engine.crash()
        await bench.until_failed()
        began_at = bench.clock.now()
        await bench.until_ready()
        assert round(bench.clock.now() - began_at) == 1

    on_bench(scenario)


def test_a_prompt_that_stops_the_engine_twice_is_refused_and_others_are_served() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(2):
            with pytest.raises(EngineDeadError):
                await bench.ask("bad", POISON)
            await bench.until_failed()
            await bench.until_ready()
        for attempt in range(20):
            with pytest.raises(SuspectedPromptError, match="suspected of stopping it"):
                await bench.ask(f"bad {attempt}", POISON)
            assert await bench.ask(f"good {attempt}") == 5
        assert bench.supervised.num_restarts == 2

    on_bench(scenario)


def test_a_prompt_that_hangs_the_engine_is_refused_though_its_callers_give_up() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(2):
            bench.engine.hang()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await bench.ask("bad", POISON)
            await bench.until_failed()
            await bench.until_ready()
        with pytest.raises(SuspectedPromptError):
            await bench.ask("bad", POISON)
        assert await bench.ask() == 5

    on_bench(scenario, heartbeat_s=5.0)


def test_the_heartbeat_is_never_a_suspect() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(2):
            bench.engine.hang()
            await bench.until_failed()
            await bench.until_ready()
        assert await bench.ask(prompt=[1]) == 5
        assert bench.supervised.num_restarts == 2

    on_bench(scenario, heartbeat_s=5.0)
