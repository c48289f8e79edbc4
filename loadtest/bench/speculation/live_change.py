"""Measures the time that a change of K takes on a running server.

The time runs from the SetSpeculation call, for a change from K = 0 to another, until a polled GetSpeculation shows the
first verified draft tokens. The measured time is an upper bound: drafts are verified one step after the first step with
the new K, and a poll comes later still.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from loadtest.bench.runner.figures import percentile
from loadtest.targets import TargetError
from loadtest.targets.speculation import Operator
from loadtest.traffic.typed import Trace
from loadtest.tuning.replay import Replay

_POLL_S = 0.001
_GIVE_UP_S = 10.0
_STILL_POLLS = 3
"""Number of polls with new tokens but no new drafts after which drafting has ended."""
_ENDLESS_S = 1e6
_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Latencies in milliseconds, one for each change."""

    shown_ms: tuple[float, ...]
    """Time until GetSpeculation shows the first verified draft tokens of the new K."""
    call_ms: tuple[float, ...]
    """Time of the SetSpeculation call alone."""

    def figures(self) -> dict[str, float]:
        """Return percentiles by name."""
        return {
            "live_change_ms_p50": percentile(self.shown_ms, 50),
            "live_change_ms_p99": percentile(self.shown_ms, 99),
            "live_change_call_ms_p50": percentile(self.call_ms, 50),
            "live_change_call_ms_p99": percentile(self.call_ms, 99),
        }


async def measure_changes(
    operator: Operator, replay: Replay, traffic: Trace, *, k: int, count: int, on_progress: Callable[[int], None]
) -> Changes:
    """Change from 0 to K `count` times while a caller for each session keeps the engine busy.

    Raises TargetError if a request failed, or a change was never seen.
    """
    shown_ms, call_ms = [], []
    callers = asyncio.create_task(replay.run(traffic, _ENDLESS_S))
    try:
        for number in range(count):
            await operator.put(((1, 1, 0),))
            drafted = await _when_still(operator)
            start = time.perf_counter()
            call_ms.append(await operator.put(((1, 1, k),)))
            await _when_drafting(operator, drafted)
            shown_ms.append((time.perf_counter() - start) * _MS)
            on_progress(number + 1)
    finally:
        callers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await callers
    return Changes(tuple(shown_ms), tuple(call_ms))


async def _when_still(operator: Operator) -> int:
    """Wait until tokens come without drafts; return the count of draft tokens."""
    figures = (await operator.get()).figures
    num_still = 0
    async with _patience():
        while num_still < _STILL_POLLS:
            await asyncio.sleep(_POLL_S)
            before, figures = figures, (await operator.get()).figures
            if figures.drafted_tokens > before.drafted_tokens:
                num_still = 0
            elif figures.generated_tokens > before.generated_tokens:
                num_still += 1
    return figures.drafted_tokens


async def _when_drafting(operator: Operator, drafted: int) -> None:
    """Wait for more draft tokens. Compare each poll with the last one, because old tokens leave the server's window."""
    async with _patience():
        while (now := (await operator.get()).figures.drafted_tokens) <= drafted:
            drafted = now
            await asyncio.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def _patience() -> AsyncIterator[None]:
    """Limit the time of the block. Raises TargetError."""
    try:
        async with asyncio.timeout(_GIVE_UP_S):
            yield
    except TimeoutError:
        raise TargetError(f"a change of K was not seen within {_GIVE_UP_S:.0f} s") from None
