"""Finds the pauses that an idle server answers with text: the others can't be answered in time by any server.

Every contestant is asked until one has answered with text, because the contestants' prompts and text rules differ.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

from loadtest.bench.capacity.trials import Key, key_of, pauses_of
from loadtest.driving.driver import lead_in
from loadtest.targets import Editor, Target, TargetError
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.typed import NEVER_S, Trace, TypedSession

_CALLERS = 4
"""Few, so that the server is nearly idle; the number does not decide whether an answer has text."""
_ANSWER_S = 30.0

Replay = Callable[[Trace], Awaitable[Collection[Key]]]
"""Asks an idle server all pauses of a trace, and returns those that it answers with text."""


class AnswerablePauses:
    """The pauses of one trace, looked up as trials need them."""

    def __init__(self, replays: Sequence[Replay]) -> None:
        """Ask servers in this order."""
        self._replays = replays
        self._asked: set[Key] = set()
        self._found: set[Key] = set()

    async def of(self, trace: Trace) -> frozenset[Key]:
        """Return the pauses of a part of the trace that one of the servers answers with text."""
        pauses = {key_of(request) for request in pauses_of(trace)}
        for replay in self._replays:
            unknown = pauses - self._asked - self._found
            if not unknown:
                break
            self._found |= set(await replay(_only(trace, unknown))) & unknown
        self._asked |= pauses
        return frozenset(pauses & self._found)


async def replay_pauses(target: Target, trace: Trace) -> set[Key]:
    """Ask a target each request of a trace, a few at a time; return those that it answers with text.

    Raises:
        TargetError: a document could not be opened, or a request failed.

    """
    found: set[Key] = set()
    async with target.editors(trace) as editors:
        await lead_in(editors, trace)
        clock, jobs = RunClock(), iter(list(zip(trace.sessions, editors, strict=True)))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_CALLERS):
                    group.create_task(_ask_in_turn(jobs, clock, found))
        except* TargetError as failures:
            raise failures.exceptions[0] from None
    return found


async def _ask_in_turn(jobs: Iterable[tuple[TypedSession, Editor]], clock: RunClock, found: set[Key]) -> None:
    for session, editor in jobs:
        for request in session.requests:
            record = Record(replace(request, next_key_at_s=NEVER_S), clock)
            editor.send_nowait(record)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    await record.wait_ended()
            if record.outcome is Outcome.ERROR:
                msg = f"a request failed at an idle server: {record.error}"
                raise TargetError(msg)
            if record.has_text:
                found.add(key_of(request))


def _only(trace: Trace, keys: Collection[Key]) -> Trace:
    """Return a trace with some of its requests, without the sessions that have none."""
    sessions = [
        replace(each, requests=tuple(request for request in each.requests if key_of(request) in keys))
        for each in trace.sessions
    ]
    return replace(trace, sessions=tuple(each for each in sessions if each.requests))
