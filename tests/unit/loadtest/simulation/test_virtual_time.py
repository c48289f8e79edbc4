"""The virtual-time loop."""

import asyncio
import time

import pytest

from loadtest.simulation.virtual_time import DeadlockError, LoopClock, run


def test_hours_pass_at_once_and_in_order() -> None:
    async def wait(seconds: float, log: list[tuple[str, float]], name: str) -> None:
        await asyncio.sleep(seconds)
        log.append((name, LoopClock().now()))

    async def main() -> list[tuple[str, float]]:
        log: list[tuple[str, float]] = []
        await asyncio.gather(wait(7200.0, log, "slow"), wait(0.001, log, "quick"), wait(7200.0, log, "second"))
        return log

    started = time.monotonic()
    assert run(main()) == [("quick", 0.001), ("slow", 7200.0), ("second", 7200.0)]
    assert time.monotonic() - started < 5.0


def test_timeouts_are_virtual_too() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 3600.0


def test_time_stands_still_while_there_is_work() -> None:
    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0.0


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(main())
