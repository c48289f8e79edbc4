"""Rounds: each finds the capacity of all contestants on one trace, with one trial of each in turn.

A pause counts if an idle server answers it with text: the others can't be answered in time by any server. Contestants
are asked until one has answered with text, because their prompts and text rules differ.
"""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console

from loadtest.bench.capacity.report import OURS_UNCACHED, Capacities, Findings, editors
from loadtest.bench.capacity.trials import (
    CONTEXTS,
    ContextSize,
    Key,
    first_sessions,
    judge,
    key_of,
    longest_s,
    only,
    pauses_of,
    trial_s,
    with_sliding_window,
)
from loadtest.bench.runner.editing import EditingContestant, EditingRuns
from loadtest.bench.runner.schedule import rotated
from loadtest.driving.driver import lead_in
from loadtest.search import Bisection, SearchSettings, Trial
from loadtest.targets import Editor, Target, TargetError
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import NEVER_S, Trace, TypedSession
from loadtest.tuning.choice import MIN_ROUNDS

_WARM_UP_SESSIONS, _WARM_UP_S = 8, 4.0
_TOLERANCE = 0.25
"""Rough, because the capacity is interpolated between the last two bounds, and rounds are averaged."""
_FIRST_GROWTH, _LATER_GROWTH = 2.0, 1.25
_CALLERS = 4
"""Few, so that the server is nearly idle; the number does not decide whether an answer has text."""
_ANSWER_S = 30.0

RunTrial = Callable[[str, int], Awaitable[Trial]]
"""Runs a contestant, given by name, with a number of editors."""
Replay = Callable[[Collection[Key]], Awaitable[Collection[Key]]]
"""Asks an idle server these pauses of a trace, and returns those that it answers with text."""


async def run_round(
    number: int, names: Sequence[str], before: Capacities, limits: tuple[int, int], run_trial: RunTrial
) -> Mapping[str, tuple[Trial, ...]]:
    """Search for each contestant's capacity and return the trials.

    The search begins at the first of the `limits` and ends at the second; later rounds begin around the capacity of the
    earlier ones, which `before` has. The contestants take turns trial by trial, in an order that rotates from round to
    round, so that a drift of the machine affects all of them.
    """
    searches = {name: Bisection(_search(limits, before.get(name, ()))) for name in rotated(names, number)}
    while any(search.next_sessions is not None for search in searches.values()):
        for name, search in searches.items():
            if search.next_sessions is not None:
                search.record(await run_trial(name, search.next_sessions))
    return {name: searches[name].capacity().trials for name in names}


def _search(limits: tuple[int, int], capacities: Sequence[float]) -> SearchSettings:
    start, most = limits
    if capacities:
        start = max(1, round(editors(capacities).value))
    return SearchSettings(min(start, most), most, _TOLERANCE, 1, _LATER_GROWTH if capacities else _FIRST_GROWTH)


def is_another_round_due(
    num_rounds: int, *, has_decided: bool, elapsed_s: float, round_s: float, limit_s: float
) -> bool:
    """Return whether to go on: until an interval exists, then until it decides or the next round comes too late."""
    if num_rounds < MIN_ROUNDS:
        return True
    return not has_decided and elapsed_s + round_s <= limit_s


@dataclass(slots=True)
class TrialRunner:
    """Runs the trials on the servers, one server at a time."""

    contestants: Mapping[str, EditingContestant]
    runs: EditingRuns
    console: Console
    least_s: float
    """Length of a trial with many editors."""
    limits: tuple[int, int]
    seed: int

    async def warm_up(self) -> None:
        """Drive each contestant a little."""
        for context in CONTEXTS:
            trace = await self._trace("warm-up", context, _WARM_UP_SESSIONS, _WARM_UP_S)
            for each in self.contestants.values():
                await self.runs.drive(each, _sent(each, trace, context))

    async def round(self, number: int, context: ContextSize, found: Findings) -> None:
        """Add a round's trials to what was found."""
        names = list(self.contestants)
        trace = await self._trace(str(number), context, self.limits[1], longest_s(self.least_s))
        sent = {name: await asyncio.to_thread(_sent, each, trace, context) for name, each in self.contestants.items()}
        # The completion cache changes no answer, so asking this server again without it would only take time.
        asked = [name for name in names if name != OURS_UNCACHED]
        pauses = AnswerablePauses([partial(self._replay, self.contestants[name], sent[name]) for name in asked])
        typing = Scenario.of({"name": "capacity"}).typing
        pauses_per_s = typing.model.keys_per_s * typing.model.share_above(typing.pause_ms / 1000)

        async def run_trial(name: str, sessions: int) -> Trial:
            seconds = trial_s(sessions, self.least_s, pauses_per_s)
            answerable = await pauses.of(first_sessions(trace, sessions, seconds))
            run = await self.runs.drive(self.contestants[name], first_sessions(sent[name], sessions, seconds))
            trial = judge(sessions, run, answerable)
            self.console.print(
                f"round {number + 1}, {context.name}: {name}, {sessions} editors: "
                f"{trial.figures['share']:.0%} of {trial.figures['pauses']:.0f} pauses in time",
                highlight=False,
            )
            return trial

        gc.collect()
        gc.freeze()  # garbage collections of the prepared traces would delay the generator
        found.add(await run_round(number, names, found.capacities, self.limits, run_trial))
        gc.unfreeze()

    async def _replay(self, contestant: EditingContestant, sent: Trace, pauses: Collection[Key]) -> set[Key]:
        async with self.runs.of(contestant) as target:
            return await replay_pauses(target, only(sent, pauses))

    async def _trace(self, name: str, context: ContextSize, sessions: int, seconds: float) -> Trace:
        documents = {"prefix_chars": context.prefix_chars, "suffix_chars": context.suffix_chars}
        scenario = Scenario.of({"name": "capacity", "documents": documents})
        seed = f"{self.seed}/{context.name}/{name}"
        return await asyncio.to_thread(make_trace, scenario.scaled(sessions=sessions, duration_s=seconds, seed=seed))


def _sent(contestant: EditingContestant, trace: Trace, context: ContextSize) -> Trace:
    """Return a trace as the clients of a contestant send it."""
    return contestant.sends(with_sliding_window(trace, context) if contestant.has_window else trace)


class AnswerablePauses:
    """The pauses of one trace, looked up as trials need them."""

    def __init__(self, replays: Sequence[Replay]) -> None:
        """Ask servers in this order."""
        self._replays = replays
        self._asked: set[Key] = set()
        self._found: set[Key] = set()

    async def of(self, trace: Trace) -> frozenset[Key]:
        """Return the pauses of a part of the trace that one of the servers answers with text."""
        pauses = pauses_of(trace)
        for replay in self._replays:
            unknown = pauses - self._asked - self._found
            if not unknown:
                break
            self._found |= set(await replay(unknown)) & unknown
        self._asked |= pauses
        return frozenset(pauses & self._found)


async def replay_pauses(target: Target, trace: Trace) -> set[Key]:
    """Ask a target each request of a trace, a few at a time; return those that it answers with text.

    Raises TargetError if a document could not be opened, or a request failed.
    """
    found: set[Key] = set()
    async with target.editors(trace) as editors_of_trace:
        await lead_in(editors_of_trace, trace)
        clock, jobs = RunClock(), iter(list(zip(trace.sessions, editors_of_trace, strict=True)))
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
                raise TargetError(f"a request failed at an idle server: {record.error}")
            if record.has_text:
                found.add(key_of(request))
