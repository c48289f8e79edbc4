"""The supervisor in virtual time: the detection of failures, and the recovery."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from completion_server.core.errors import SuspectedPromptError
from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from tests.support.cancels import cancel_and_wait
from tests.support.constants import with_constants
from tests.support.scripted import AsyncTest, with_first
from tests.support.server import eventually

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
        await eventually(lambda: self.supervised.state is EngineState.READY)

    async def until_failed(self) -> float:
        """Return after how many seconds."""
        began_at = asyncio.get_running_loop().time()
        await eventually(lambda: self.supervised.state is not EngineState.READY)
        return asyncio.get_running_loop().time() - began_at


STEP_S = 0.01


@asynccontextmanager
async def running(step_s: float = STEP_S, start_s: float = 0.0, **settings: float) -> AsyncIterator[Bench]:
    """Run a supervised engine, by default without warm-up and heartbeats."""
    constants = {"heartbeat_s": 0.0, "restart_backoff_min_s": 1.0} | settings
    times = ServiceTimes(start_s=start_s, decode_base_s=step_s, prefill_base_s=step_s)
    bench = Bench(with_constants(EngineSettings(warm_up=False), **constants), times)
    await bench.supervised.start()
    run = asyncio.create_task(bench.supervised.run())
    await asyncio.sleep(0)
    yield bench
    await cancel_and_wait(run)
    await bench.supervised.stop()


def on_bench(**settings: float) -> Callable[[AsyncTest], Callable[..., None]]:
    return with_first(lambda: running(**settings))


@on_bench(start_s=40.0, restart_backoff_min_s=1.0)
async def test_the_end_of_a_restart_is_predicted_from_the_last_start(bench: Bench) -> None:
    assert bench.supervised.start_s == pytest.approx(40.0)
    assert bench.supervised.remaining_start_s() == pytest.approx(40.0)  # of the start after a failure
    bench.engine.crash("out of memory")
    await bench.until_failed()
    assert bench.supervised.remaining_start_s() == pytest.approx(41.0, abs=0.1)  # the back-off comes first
    await asyncio.sleep(21.0)
    assert bench.supervised.state is EngineState.STARTING
    assert bench.supervised.remaining_start_s() == pytest.approx(20.0, abs=0.1)
    await bench.until_ready()


@on_bench(step_s=1.0)
async def test_a_watch_that_was_stopped_itself_does_not_blame_the_engine(bench: Bench) -> None:
    asking = asyncio.create_task(bench.ask(num_tokens=4))
    await asyncio.sleep(1.5)
    bench.clock.shift_s += 3600.0
    assert await asking == 4
    assert bench.supervised.num_restarts == 0


@pytest.mark.parametrize(("cpu_rate", "after_s"), [(2.0, 60.0), (0.01, 10.0)], ids=["spins for ever", "waits for ever"])
@on_bench()
async def test_an_engine_that_hangs_is_replaced_sooner_if_it_does_not_compute(
    bench: Bench, cpu_rate: float, after_s: float
) -> None:
    bench.engine.cpu_rate = cpu_rate
    bench.engine.hang()
    asking = asyncio.create_task(bench.ask())
    assert after_s <= await bench.until_failed() < after_s + 2
    with pytest.raises(EngineDeadError):
        await asking


@on_bench()
async def test_the_back_off_grows_over_lives_that_are_short(bench: Bench) -> None:
    waits = []
    for served_s in (0, 5, 5, 5, 5, 5, 5, 61):
        await asyncio.sleep(served_s)
        bench.engine.crash()
        await bench.until_failed()
        began_at = bench.clock.now()
        await bench.until_ready()
        waits.append(round(bench.clock.now() - began_at))
    assert waits == [1, 2, 4, 8, 16, 30, 30, 1]


@on_bench(heartbeat_s=5.0)
async def test_a_prompt_that_hangs_the_engine_is_refused_though_its_callers_give_up(bench: Bench) -> None:
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
