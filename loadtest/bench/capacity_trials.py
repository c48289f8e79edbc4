"""The trials of the capacity benchmark: what they send, how they are judged, and which pauses count.

A session depends on the seed and its number only, so a trial of 20 sessions has those of a trial of 10. A pause counts
if an idle server answers it with text: the others can't be answered in time by any server. Contestants are asked until
one has answered with text, because their prompts and text rules differ.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loadtest.bench.runner.contest import rotated
from loadtest.bench.runner.figures import percentile, ratio
from loadtest.driving.driver import Run, lead_in
from loadtest.search import Bisection, SearchSettings, Trial
from loadtest.targets import Editor, Target, TargetError
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.typed import NEVER_S, Text, Trace, TypedRequest, TypedSession

WITHIN_S = 0.25
"""Largest time from the intended time to the first visible text that the promise allows."""
PROMISED_SHARE = 0.9
"""Share of the answerable pauses whose text is promised within this time."""
LONGEST = 3
"""A trial with few editors takes up to this multiple of the shortest one."""

Key = tuple[int, int]
"""A request of a trace: the numbers of its session and of its sequence."""

_GOES_ON_CHARS = 200
"""Text kept after the cursor's window; an answer is compared with it."""
_PAUSES = 40
"""Pauses that a trial should have."""
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


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The text around the cursor that an editor sends."""

    name: str
    prefix_chars: int
    suffix_chars: int


CONTEXTS = (ContextSize("short", 400, 100), ContextSize("long", 1500, 400))


def trial_s(sessions: int, least_s: float, pauses_per_s: float) -> float:
    """Return the duration of a trial whose editors pause so often each: long enough for some pauses."""
    return min(LONGEST * least_s, max(least_s, _PAUSES / (pauses_per_s * sessions)))


def _with_requests(trace: Trace, is_kept: Callable[[TypedRequest], bool]) -> Trace:
    sessions = [replace(each, requests=tuple(filter(is_kept, each.requests))) for each in trace.sessions]
    return replace(trace, sessions=tuple(sessions))


def first_sessions(trace: Trace, sessions: int, seconds: float) -> Trace:
    """Return the first sessions of a trace and their first seconds."""
    first = replace(trace, sessions=trace.sessions[:sessions], duration_s=seconds)
    return _with_requests(first, lambda request: request.intended_at_s < seconds)


def key_of(request: TypedRequest) -> Key:
    """Return the key of a request."""
    return request.session, request.sequence


def pauses_of(trace: Trace) -> set[Key]:
    """Return the requests after which the user waits."""
    return {key_of(request) for session in trace.sessions for request in session.requests if request.is_pause}


def only(trace: Trace, keys: Collection[Key]) -> Trace:
    """Return a trace with some of its requests, without the sessions that have none."""
    found = _with_requests(trace, lambda request: key_of(request) in keys)
    return replace(found, sessions=tuple(each for each in found.sessions if each.requests))


def with_sliding_window(trace: Trace, context: ContextSize) -> Trace:
    """Return a trace as clients send it that cut the text themselves: their window moves with each key."""

    def cut(request: TypedRequest) -> TypedRequest:
        start = max(0, request.end - context.prefix_chars)
        before = request.text.before[start : request.end + _GOES_ON_CHARS]
        text = Text(before, request.text.after[: context.suffix_chars])
        return replace(request, text=text, end=request.end - start)

    sessions = [
        replace(each, opening=cut(each.opening), requests=tuple(map(cut, each.requests))) for each in trace.sessions
    ]
    return replace(trace, sessions=tuple(sessions))


def judge(sessions: int, run: Run, answerable: Collection[Key], promised_share: float = PROMISED_SHARE) -> Trial:
    """Return the trial of a run. Without an answerable pause nothing is broken, so it passes."""
    pauses = [each for each in run.results if each.request.is_pause and key_of(each.request) in answerable]
    missed = [each for each in pauses if each.ttft_s is None or each.ttft_s > WITHIN_S]
    share = 1 - len(missed) / len(pauses) if pauses else 1.0
    figures = {
        "share": share,
        "pauses": float(len(pauses)),
        "ttft_ms_p95": percentile([each.ttft_s * 1000 for each in pauses if each.ttft_s is not None], 95),
        "lag_ms_p99": percentile([each.lag_s * 1000 for each in run.results], 99),
    }
    causes = Counter("late" if each.ttft_s is not None else each.outcome.value for each in missed)
    return Trial(sessions, share >= promised_share, figures | {f"missed_{why}": n for why, n in causes.items()})


def crossing(trials: Sequence[Trial]) -> float:
    """Return the number of editors at which the share falls below the promise, between the last two bounds.

    It is interpolated over the logarithm of the number: from the largest number that passed to the smallest one above
    it that failed. 0 if one editor fails; the largest number that passed if none failed.
    """
    passed = max((each for each in trials if each.is_passed), key=lambda each: each.sessions, default=None)
    if passed is None:
        return 0.0
    above = [each for each in trials if not each.is_passed and each.sessions > passed.sessions]
    if not above:
        return float(passed.sessions)
    failed = min(above, key=lambda each: each.sessions)
    over, under = passed.figures["share"] - PROMISED_SHARE, PROMISED_SHARE - failed.figures["share"]
    return float(passed.sessions * (failed.sessions / passed.sessions) ** (over / (over + under)))


async def run_round(
    number: int, names: Sequence[str], before: Mapping[str, Sequence[float]], limits: tuple[int, int], run: RunTrial
) -> Mapping[str, tuple[Trial, ...]]:
    """Search for each contestant's capacity and return the trials.

    The search begins at the first of the `limits` and ends at the second; later rounds begin around the capacities of
    the earlier ones, which `before` has. The contestants take turns trial by trial, in an order that rotates from round
    to round, so that a drift of the machine affects all of them.
    """
    searches = {name: Bisection(_search(limits, before.get(name, ()))) for name in rotated(names, number)}
    while any(search.next_sessions is not None for search in searches.values()):
        for name, search in searches.items():
            if search.next_sessions is not None:
                search.record(await run(name, search.next_sessions))
    return {name: searches[name].capacity().trials for name in names}


def _search(limits: tuple[int, int], capacities: Sequence[float]) -> SearchSettings:
    start, most = limits
    if capacities:
        start = max(1, round(ratio(capacities, [1.0] * len(capacities), least=1.0).value))
    return SearchSettings(min(start, most), most, _TOLERANCE, 1, _LATER_GROWTH if capacities else _FIRST_GROWTH)


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
            if unknown := pauses - self._asked - self._found:
                self._found |= set(await replay(unknown)) & unknown
        self._asked |= pauses
        return frozenset(pauses & self._found)


async def replay_pauses(target: Target, trace: Trace) -> set[Key]:
    """Ask a target each request of a trace, a few at a time; return those that it answers with text.

    Raises TargetError if a document could not be opened, or a request failed.
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
                raise TargetError(f"a request failed at an idle server: {record.error}")
            if record.has_text:
                found.add(key_of(request))
