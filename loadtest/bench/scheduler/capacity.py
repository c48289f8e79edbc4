"""Measures the engine's capacity: whole completions per second, closed loop, at the best concurrency.

Each caller types in its own document and sends the next key's request as soon as it has its answer, so that the prefix
cache works as while typing. Loads are multiples of this rate.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.driving.driver import lead_in
from loadtest.targets import Editor, Target, TargetError
from loadtest.targets.record import WHOLE, Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import Trace, TypedSession, make_trace

_TYPED_S_PER_S = 10.0
"""Typing prepared per second; callers without pauses use it up faster than users."""


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """The measured capacity."""

    by_concurrency: Mapping[int, float]
    """Whole completions per second."""

    @property
    def completions_per_s(self) -> float:
        """The rate at the best concurrency."""
        return max(self.by_concurrency.values())


async def measure_capacity(
    target: Target, concurrencies: Sequence[int], seconds: float, scenario: Scenario
) -> EngineCapacity:
    """Measure for `seconds` at each concurrency.

    Raises:
        TargetError: a request failed, or none was answered.

    """
    found: dict[int, float] = {}
    for concurrency in concurrencies:
        seed = f"{scenario.seed}/capacity/{concurrency}"
        trace = make_trace(scenario.scaled(sessions=concurrency, duration_s=seconds * _TYPED_S_PER_S, seed=seed))
        found[concurrency] = await completions_per_s(target, trace, seconds)
    if not any(found.values()):
        msg = f"{target.name} answered nothing while its capacity was measured"
        raise TargetError(msg)
    return EngineCapacity(found)


async def completions_per_s(target: Target, trace: Trace, seconds: float) -> float:
    """Return the whole completions per second with a caller for each session, until one has no more requests.

    Raises:
        TargetError: a request failed.

    """
    async with target.editors(trace) as editors:
        await lead_in(editors, trace)
        clock = RunClock()
        records: list[Record] = []
        callers = [
            asyncio.create_task(_call(session, editor, clock, records))
            for session, editor in zip(trace.sessions, editors, strict=True)
        ]
        try:
            await asyncio.wait(callers, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            elapsed_s = clock.now_s()
            results = [record.result() for record in records]
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
    failed = next((result for result in results if result.outcome is Outcome.ERROR), None)
    if failed is not None:
        msg = f"{target.name} failed while its capacity was measured: {failed.error}"
        raise TargetError(msg)
    return sum(result.outcome in WHOLE for result in results) / elapsed_s


async def _call(session: TypedSession, editor: Editor, clock: RunClock, records: list[Record]) -> None:
    for request in session.requests:
        record = Record(request, clock)
        records.append(record)
        editor.send_nowait(record)
        await record.wait_ended()
