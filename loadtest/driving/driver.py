"""The open-loop driver: sends each request of a trace at its intended time, regardless of the earlier ones.

Latencies count from the intended time, so that a late generator makes them worse, never better. The lateness is
recorded too. The target decides how requests are sent and what the user's next key does.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from loadtest.targets import Editor, Target, TargetError
from loadtest.targets.editor import EditorCache
from loadtest.targets.record import Outcome, Record, Result, RunClock
from loadtest.traffic.typed import Event, Trace, TypedRequest, TypedSession

DRAIN_S = 3.0
"""Time after a trace's end that its last answers may take."""

_LEAD_S = 0.05
"""Time from the end of the preparation to the start."""
_SENDS_AT_ONCE = 64
_DROPS_AT_ONCE = 100
"""Connections dropped at a time; then the answers that came meanwhile are read."""
_OPENINGS_AT_ONCE = 2
"""Few, so that the server does not shed them."""
_OPENING_S = 30.0


@dataclass(frozen=True, slots=True)
class Run:
    """The results of driving a target along a trace."""

    duration_s: float
    results: tuple[Result, ...]
    """Results in the order of the sessions and of their requests."""
    generated_tokens: float
    """Tokens that the engine generated until the last request was cancelled; nan if unknown."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the driver calls as requests become due and end."""

    due: Callable[[Record], None]
    """Called when a request is due."""
    ended: Callable[[Record], None]
    """Called once for each record that was due, when it ends."""


async def drive(target: Target, trace: Trace, *, drain_s: float = DRAIN_S, has_lead_in: bool = True) -> Run:
    """Send a trace's requests at their times and return the results.

    With the lead-in, each session's opening is sent first, a few at a time, and does not count. Users have their
    documents open for longer than any run; without it, a run would mostly show the cost of unknown documents.

    Raises TargetError if an opening was not answered.
    """
    records: list[Record] = []
    async with target.editors(trace) as editors:
        if has_lead_in:
            await lead_in(editors, trace)
        tokens_before = await target.generated_tokens()
        driver = Driver(trace, editors, RunClock(_LEAD_S), Callbacks(records.append, lambda _record: None))
        await driver.drive(drain_s)
        tokens = await target.generated_tokens() - tokens_before
    records.sort(key=lambda record: (record.request.session, record.request.sequence))
    return Run(trace.duration_s, tuple(records), tokens)


class Driver:
    """Sends the requests of all sessions in the order of their times, in one task."""

    def __init__(
        self,
        trace: Trace,
        editors: Sequence[Editor],
        clock: RunClock,
        callbacks: Callbacks,
        cache_entries: int = 0,
    ) -> None:
        """Drive `editors`, one for each session of the trace, in the same order."""
        self._trace = trace
        self._clock = clock
        self._callbacks = callbacks
        self._sessions = {
            session.number: SessionState(session, editor, EditorCache(0 if session.user else cache_entries))
            for session, editor in zip(trace.sessions, editors, strict=True)
        }
        self._open: set[Record] = set()
        self._is_idle = asyncio.Event()
        self._is_stopped = asyncio.Event()

    def stop_nowait(self) -> None:
        """Stop sending and waiting for answers."""
        self._is_stopped.set()

    @property
    def num_lost(self) -> int:
        """Number of sessions without a connection."""
        return sum(not state.editor.is_connected for state in self._sessions.values())

    async def drive(self, drain_s: float = DRAIN_S) -> float:
        """Drive until the trace's end and its last answers, or until stopped; return the seconds driven."""
        stopped = asyncio.create_task(self._is_stopped.wait())
        driving = asyncio.create_task(self._drive(drain_s))
        try:
            await asyncio.wait({stopped, driving}, return_when=asyncio.FIRST_COMPLETED)
            duration_s = max(0.0, min(self._trace.duration_s, self._clock.now_s()))
        finally:
            for task in (stopped, driving):
                task.cancel()
            await asyncio.gather(stopped, driving, return_exceptions=True)
            for record in tuple(self._open):
                record.end(Outcome.UNANSWERED)
        if not driving.cancelled():
            driving.result()
        return duration_s

    async def _drive(self, drain_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            happening = group.create_task(self._let_happen())
            await self._send_all()
            await self._clock.sleep_until(self._trace.duration_s)
            happening.cancel()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._is_idle.wait()

    async def _send_all(self) -> None:
        requests = [request for session in self._trace.sessions for request in session.requests]
        requests.sort(key=lambda request: request.intended_at_s)
        for place, request in enumerate(requests):
            if request.intended_at_s > self._clock.now_s():
                await self._clock.sleep_until(request.intended_at_s)
            elif place % _SENDS_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._send(request)

    def _send(self, request: TypedRequest) -> None:
        state = self._sessions[request.session]
        record = Record(request, self._clock, self._ended)
        self._open.add(record)
        self._is_idle.clear()
        self._callbacks.due(record)
        found = state.cache.find(request)
        if found:
            record.end_from_cache(found)
        else:
            state.editor.send_nowait(record)

    def _ended(self, record: Record) -> None:
        self._open.discard(record)
        if not self._open:
            self._is_idle.set()
        if record.outcome is Outcome.ANSWERED:
            self._sessions[record.request.session].cache.add(record.request, record.text)
        self._callbacks.ended(record)

    async def _let_happen(self) -> None:
        ends_s = self._trace.duration_s
        moments = [(event.at_s, event, 1) for event in self._trace.events]
        moments += [(event.until_s, event, 0) for event in self._trace.events if event.at_s < event.until_s < ends_s]
        for at_s, event, host_shift in sorted(moments, key=lambda moment: moment[0]):
            await self._clock.sleep_until(at_s)
            hit = self._hit_by(event)
            while states := list(islice(hit, _DROPS_AT_ONCE)):
                for state in states:
                    state.editor.drop_nowait(None if event.kind == "reconnect" else host_shift)
                await asyncio.sleep(0)

    def _hit_by(self, event: Event) -> Iterator["SessionState"]:
        return (state for state in self._sessions.values() if event.region in {None, state.session.region})


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session of the schedule, its editor and the completions that it remembers."""

    session: TypedSession
    editor: Editor
    cache: EditorCache


async def lead_in(editors: Sequence[Editor], trace: Trace) -> None:
    """Let the target see each session's document once. Raises TargetError if one was not answered."""
    clock = RunClock()
    pairs = iter([each for each in zip(trace.sessions, editors, strict=True) if each[0].requests])
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_OPENINGS_AT_ONCE):
                group.create_task(_open_in_turn(pairs, clock))
    except* TargetError as failures:
        raise failures.exceptions[0] from None


async def _open_in_turn(pairs: Iterable[tuple[TypedSession, Editor]], clock: RunClock) -> None:
    for session, editor in pairs:
        record = Record(session.opening, clock)
        editor.send_nowait(record, max_tokens=1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPENING_S):
                await record.wait_ended()
        if record.outcome in {Outcome.ERROR, Outcome.UNANSWERED}:
            raise TargetError(f"a document could not be opened: {record.outcome.value} {record.error}".strip())
