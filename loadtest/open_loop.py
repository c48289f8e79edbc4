"""Drives a target along a trace, open loop: each request goes out at its time, whatever became of those before it.

Latencies count from the intended time, so a generator that is late makes them worse, never better; how late it was is
recorded too. What a target is, and what a user's next key means to it, is the target's own business.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from loadtest.trace import Trace, TypedRequest, TypedSession

DRAIN_S = 3.0
"""How long after a trace's end its last answers may take."""

_LEAD_S = 0.05
"""From the last preparation to the trace's start."""
_OPENINGS_AT_ONCE = 2
"""Few, so that a server that sheds does not shed these."""
_OPENING_S = 30.0


class Outcome(Enum):
    """How a request ended."""

    ANSWERED = "answered"
    """Whole, with text that an editor can show."""
    EMPTY = "empty"
    """Whole, without."""
    SUPERSEDED = "superseded"
    """The server dropped it for a newer one of the same user."""
    SHED = "shed"
    DEADLINE = "deadline"
    HUNG_UP = "hung_up"
    """The client closed the connection because the user had typed on."""
    ERROR = "error"
    UNANSWERED = "unanswered"
    """Not ended when the run was."""


WHOLE = (Outcome.ANSWERED, Outcome.EMPTY)


class TargetError(Exception):
    """A target did not do what every run needs; the message says what."""


class TraceClock:
    """Seconds since a trace's start."""

    def __init__(self, lead_s: float = 0.0) -> None:
        """Start the trace `lead_s` from now."""
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time() + lead_s

    def now_s(self) -> float:
        """Return the time in the trace."""
        return self._loop.time() - self._start

    def loop_time(self, at_s: float) -> float:
        """Return the event loop's time of a time in the trace."""
        return self._start + at_s

    async def sleep_until(self, at_s: float) -> None:
        """Wait for a time; return at once where it is past."""
        delay_s = at_s - self.now_s()
        if delay_s > 0:
            await asyncio.sleep(delay_s)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a request. Times are in seconds from the trace's start."""

    request: TypedRequest
    sent_at_s: float
    first_text_at_s: float | None
    """When the first visible text came; None where none did."""
    ended_at_s: float | None
    outcome: Outcome
    completion_tokens: int
    """Tokens that the target says it generated for it, as far as was heard."""
    error: str = ""

    @property
    def lag_s(self) -> float:
        """How late the generator sent it."""
        return self.sent_at_s - self.request.intended_at_s

    @property
    def ttft_s(self) -> float | None:
        """From the intended time to the first visible text, however it ended after that."""
        return None if self.first_text_at_s is None else self.first_text_at_s - self.request.intended_at_s


class Record:
    """A request under way; whoever hears something of it says so here, and the time is taken."""

    def __init__(self, request: TypedRequest, clock: TraceClock) -> None:
        """Open it as it is sent."""
        self.request = request
        self.text = ""
        self.clock = clock
        self._sent_at_s = clock.now_s()
        self._first_text_at_s: float | None = None
        self._ended_at_s: float | None = None
        self._outcome: Outcome | None = None
        self._completion_tokens = 0
        self._error = ""
        self._has_ended = asyncio.Event()

    @property
    def has_text(self) -> bool:
        """Whether visible text has come."""
        return self._first_text_at_s is not None

    def text_came(self, text: str) -> None:
        """Take text; blanks are nothing that an editor can show."""
        self.text += text
        if self._first_text_at_s is None and text.strip():
            self._first_text_at_s = self.clock.now_s()

    def count_tokens(self, completion_tokens: int) -> None:
        """Say how many tokens it has come to."""
        self._completion_tokens = completion_tokens

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Say how it ended; only the first word counts."""
        if self._outcome is None:
            self._outcome, self._error = outcome, error
            self._ended_at_s = self.clock.now_s()
            self._has_ended.set()

    def end_whole(self) -> None:
        """Say that the target has nothing to add."""
        self.end(Outcome.ANSWERED if self.has_text else Outcome.EMPTY)

    async def wait_ended(self) -> None:
        """Wait for its end."""
        await self._has_ended.wait()

    def result(self) -> Result:
        """Return what is known of it now."""
        return Result(
            request=self.request,
            sent_at_s=self._sent_at_s,
            first_text_at_s=self._first_text_at_s,
            ended_at_s=self._ended_at_s,
            outcome=self._outcome or Outcome.UNANSWERED,
            completion_tokens=self._completion_tokens,
            error=self._error,
        )


class Editor(Protocol):
    """One session's way to a target."""

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """Send a request without waiting for anything; `max_tokens` is instead of the target's own number."""
        ...


class Target(Protocol):
    """Something that answers editors."""

    name: str

    def editors(self, trace: Trace) -> AbstractAsyncContextManager[Sequence[Editor]]:
        """Connect an editor for each session, in their order; leaving the context cancels what is open."""
        ...

    async def generated_tokens(self) -> float:
        """Return how many tokens its engine has generated since it started, for whomever."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """A target's way along a trace."""

    duration_s: float
    results: tuple[Result, ...]
    """In the order of the sessions and of their requests."""
    generated_tokens: float
    """By the engine, from the trace's start until its stragglers were cancelled."""


async def drive(target: Target, trace: Trace, *, drain_s: float = DRAIN_S, has_lead_in: bool = True) -> Run:
    """Send a trace's requests at their times and return what became of them.

    With the lead-in each session's opening is asked for first, a few at a time, and does not count: people have their
    documents open for longer than any trace, so a trace that begins with all of them unknown would mostly show that.

    Raises:
        TargetError: an opening was not answered.

    """
    async with target.editors(trace) as editors:
        if has_lead_in:
            await lead_in(editors, trace)
        tokens_before = await target.generated_tokens()
        clock = TraceClock(_LEAD_S)
        typed: list[list[Record]] = [[] for _ in trace.sessions]
        async with asyncio.TaskGroup() as group:
            for session, editor, records in zip(trace.sessions, editors, typed, strict=True):
                group.create_task(_type(session, editor, clock, records))
        await clock.sleep_until(trace.duration_s)
        records = [record for session in typed for record in session]
        await _wait(records, drain_s)
        results = tuple(record.result() for record in records)
        tokens = await target.generated_tokens() - tokens_before
    return Run(trace.duration_s, results, tokens)


async def lead_in(editors: Sequence[Editor], trace: Trace) -> None:
    """Let the target see each session's document once.

    Raises:
        TargetError: one was not answered.

    """
    clock = TraceClock()
    jobs = iter([each for each in zip(trace.sessions, editors, strict=True) if each[0].requests])
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_OPENINGS_AT_ONCE):
                group.create_task(_open_in_turn(jobs, clock))
    except* TargetError as failures:
        raise failures.exceptions[0] from None


async def _open_in_turn(jobs: Iterator[tuple[TypedSession, Editor]], clock: TraceClock) -> None:
    for session, editor in jobs:
        record = Record(session.opening, clock)
        editor.send_nowait(record, max_tokens=1)
        await _wait([record], _OPENING_S)
        result = record.result()
        if result.outcome in {Outcome.ERROR, Outcome.UNANSWERED}:
            msg = f"a document could not be opened: {result.outcome.value} {result.error}".strip()
            raise TargetError(msg)


async def _type(session: TypedSession, editor: Editor, clock: TraceClock, records: list[Record]) -> None:
    for request in session.requests:
        await clock.sleep_until(request.intended_at_s)
        record = Record(request, clock)
        records.append(record)
        editor.send_nowait(record)


async def _wait(records: Sequence[Record], seconds: float) -> None:
    """Wait until all have ended, but no longer than this."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for record in records:
                await record.wait_ended()
