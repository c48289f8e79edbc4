"""The contestants of a benchmark and their turns: all are live in one run, and one runs at a time.

The others are suspended meanwhile. So a drift of the machine affects all of them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Self, TypeVar

from rich.console import Console

from loadtest.driving.driver import Run, drive, lead_in
from loadtest.processes.child import Child
from loadtest.targets import Target, TargetError
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario, ScenarioError
from loadtest.traffic.typed import NEVER_S, Trace

_SETTLE_S = 0.5
"""Time from the start of a turn to its first request: timers that were due are late, and a server closes connections
that have been idle for long."""
_ANSWER_S = 30.0

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClosing:
    """Something that is closed when its context is left."""

    async def aclose(self) -> None:
        """Close it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class Contestant(AsyncClosing):
    """A running server, a peer, or a bare part of a server. Leaving its context stops its processes."""

    name: str
    process: Child
    """The process, with those that it has started."""

    def _begin(self, child: Child, wait: Callable[[Child], T]) -> T:
        """Take a process and return the result of waiting for its start. One that does not come up is stopped."""
        self.process = child
        try:
            return wait(child)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the processes."""
        self.process.stop()

    async def aclose(self) -> None:
        """Stop the processes."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


ContestantT = TypeVar("ContestantT", bound=Contestant)


@dataclass(frozen=True, slots=True)
class EditingContestant:
    """A server and the clients of its editors."""

    name: str
    process: Child
    connect: Callable[[str], AbstractAsyncContextManager[Target]]
    """Returns a target for one run, with the run's own name: no run finds the cached prompts or completions of another.
    """
    sends: Callable[[Trace], Trace] = lambda trace: trace
    """Returns a trace as its clients send it."""
    has_window: bool = False
    """Whether its clients cut the text around the cursor themselves, so that their window moves with each key."""


class Contest(AsyncExitStack):
    """The contestants of a run, of which one runs at a time; the others are suspended. Leaving it stops them.

    A server that rests still uses CPU time: heartbeats, timers, and vLLM's worker, which spins on a core for a second
    after its last step. On a small machine all of that would count for the server that is measured.
    """

    def __init__(self, console: Console, settle_s: float = _SETTLE_S) -> None:
        super().__init__()
        self.console = console
        self._settle_s = settle_s
        self._active: Child | None = None
        self._num_runs = 0

    async def start(self, name: str, make: Callable[P, ContestantT], *args: P.args, **kwargs: P.kwargs) -> ContestantT:
        """Start a contestant, which is suspended until it has its turn. Raises StartError if it did not start."""
        with self.console.status(f"starting: {name}"):
            contestant = make(*args, **kwargs)
            await self.enter_async_context(contestant)
        contestant.process.pause()
        return contestant

    async def give_turn(self, server: Child) -> None:
        """Suspend the server whose turn it was, and let another one run."""
        if server is self._active:
            return
        if self._active is not None:
            self._active.pause()
        self._active = server
        server.resume()
        await asyncio.sleep(self._settle_s)

    @asynccontextmanager
    async def target_of(self, contestant: EditingContestant) -> AsyncIterator[Target]:
        """Yield the target of a contestant, whose server alone runs from now on.

        A TargetError of the block is raised with the contestant's name in front.
        """
        await self.give_turn(contestant.process)
        self._num_runs += 1
        async with contestant.connect(str(self._num_runs)) as target:
            try:
                yield target
            except TargetError as error:
                raise TargetError(f"{contestant.name}: {error}") from error

    async def drive(self, contestant: EditingContestant, sent: Trace) -> Run:
        """Drive a contestant along a trace, in the form that its clients send. Raises TargetError as `target_of`."""
        async with self.target_of(contestant) as target:
            return await drive(target, sent)


def rotated(items: Sequence[T], number: int) -> list[T]:
    """Return the items in the order of round `number`: each is as often first as last."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


async def ask_in_turn(target: Target, trace: Trace, num_callers: int) -> tuple[list[Record], float]:
    """Open the documents of a trace, then ask each of its requests; each caller sends its next when it has its answer.

    Nobody types on meanwhile. Return the records in the order of the trace, and the seconds that the requests took
    together. Raises TargetError if a document could not be opened, or a request failed.
    """
    async with target.editors(trace) as editors:
        await lead_in(editors, trace)
        clock, begun, records = RunClock(), time.perf_counter(), list[Record]()
        waiting = iter(list(zip(trace.sessions, editors, strict=True)))

        async def call() -> None:
            for session, editor in waiting:
                for request in session.requests:
                    record = Record(replace(request, next_key_at_s=NEVER_S), clock)
                    records.append(record)
                    editor.send_nowait(record, request.max_tokens or None)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_ANSWER_S):
                            await record.wait_ended()
                    if record.outcome is Outcome.ERROR:
                        raise TargetError(f"a request failed at an idle server: {record.error}")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(num_callers):
                    group.create_task(call())
        except* TargetError as failures:
            raise failures.exceptions[0] from None
        wall_s = time.perf_counter() - begun
    return sorted(records, key=lambda record: (record.request.session, record.request.sequence)), wall_s


async def open_loop(rate: float, seconds: float, ask: Callable[[int, float], Coroutine[Any, Any, T]]) -> list[T]:
    """Ask `rate` times a second for some time, whatever the answers take; return them in the order of the requests.

    `ask` gets the request's number and its intended time by `time.perf_counter`, and must raise nothing.
    """
    tasks: list[asyncio.Task[T]] = []
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(max(1, round(seconds * rate))):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(group.create_task(ask(number, due)))
    return [task.result() for task in tasks]


def editors(sessions: int, requests_per_s: float, seconds: float, seed: int) -> Scenario:
    """Return the packaged scenario of ten thousand editors with other sizes: the time away follows from the rate.

    Raises ScenarioError if so few editors can't send as many requests.
    """
    scenario = Scenario.load("editors-10k")
    while_typing = scenario.session_requests_per_s / (1 - scenario.typing.away_share)
    away_share = 1 - requests_per_s / sessions / while_typing
    if away_share < 0:
        msg = f"requests-per-s: {sessions} editors ask at most {sessions * while_typing:.0f}, got {requests_per_s:g}"
        raise ScenarioError(msg)
    tree = scenario.model_dump() | {"sessions": sessions, "duration_s": seconds, "seed": seed}
    tree["typing"]["away_share"] = away_share
    return Scenario.of(tree)
