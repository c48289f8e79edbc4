"""The trials of the benchmark: a trace for each round and context, of which a trial takes the first sessions. Pure.

A session depends on the seed and its number only, so a trial of 20 sessions has those of a trial of 10. A trial is
judged by the share of the answerable pauses that got their first text in time.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from loadtest.bench.runner.figures import percentile
from loadtest.driving.driver import Run
from loadtest.search import Trial
from loadtest.targets.record import Result
from loadtest.traffic.typed import Text, Trace, TypedRequest

WITHIN_S = 0.25
"""Largest time from the intended time to the first visible text that the promise allows."""
PROMISED_SHARE = 0.9
"""Share of the answerable pauses whose text is promised within this time."""

Key = tuple[int, int]
"""A request of a trace: the numbers of its session and of its sequence."""

_GOES_ON_CHARS = 200
"""Text kept after the cursor's window; an answer is compared with it."""
_PAUSES = 40
"""Pauses that a trial should have."""
_LONGEST = 3
"""A trial with few editors takes up to this multiple of the shortest one."""


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The text around the cursor that an editor sends."""

    name: str
    prefix_chars: int
    suffix_chars: int

    @property
    def about(self) -> str:
        """The sizes, for a reader."""
        return f"{self.prefix_chars:,} + {self.suffix_chars} characters"


CONTEXTS = (ContextSize("short", 400, 100), ContextSize("long", 1500, 400))


def longest_s(least_s: float) -> float:
    """Return the duration of the longest trial, from that of the shortest."""
    return _LONGEST * least_s


def trial_s(sessions: int, least_s: float, pauses_per_s: float) -> float:
    """Return the duration of a trial whose editors pause so often each: long enough for some pauses."""
    return min(longest_s(least_s), max(least_s, _PAUSES / (pauses_per_s * sessions)))


def first_sessions(trace: Trace, sessions: int, seconds: float) -> Trace:
    """Return the first sessions of a trace and their first seconds."""
    cut = [
        replace(each, requests=tuple(request for request in each.requests if request.intended_at_s < seconds))
        for each in trace.sessions[:sessions]
    ]
    return replace(trace, sessions=tuple(cut), duration_s=seconds)


def key_of(request: TypedRequest) -> Key:
    """Return the key of a request."""
    return request.session, request.sequence


def pauses_of(trace: Trace) -> set[Key]:
    """Return the requests after which the user waits."""
    return {key_of(request) for session in trace.sessions for request in session.requests if request.is_pause}


def only(trace: Trace, keys: Collection[Key]) -> Trace:
    """Return a trace with some of its requests, without the sessions that have none."""
    sessions = [
        replace(each, requests=tuple(request for request in each.requests if key_of(request) in keys))
        for each in trace.sessions
    ]
    return replace(trace, sessions=tuple(each for each in sessions if each.requests))


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
    in_time = [each for each in pauses if each.ttft_s is not None and each.ttft_s <= WITHIN_S]
    share = len(in_time) / len(pauses) if pauses else 1.0
    figures = {
        "share": share,
        "pauses": float(len(pauses)),
        "ttft_ms_p95": percentile([each.ttft_s * 1000 for each in pauses if each.ttft_s is not None], 95),
        "lag_ms_p99": percentile([each.lag_s * 1000 for each in run.results], 99),
    }
    missed = Counter(_cause(each) for each in pauses if each not in in_time)
    return Trial(sessions, share >= promised_share, figures | {f"missed_{why}": n for why, n in missed.items()})


def _cause(result: Result) -> str:
    """Return why a pause was not answered in time."""
    return "late" if result.ttft_s is not None else result.outcome.value


def crossing(trials: Sequence[Trial]) -> float:
    """Return the number of editors at which the share falls below the promise, between the last two bounds.

    It is interpolated over the logarithm of the number: from the largest number that passed to the smallest one above
    it that failed. 0 if one editor fails; the largest number that passed if none failed.
    """
    passed = max((each for each in trials if each.is_passed), key=lambda each: each.sessions, default=None)
    if passed is None:
        return 0.0
    failed = min(
        (each for each in trials if not each.is_passed and each.sessions > passed.sessions),
        key=lambda each: each.sessions,
        default=None,
    )
    if failed is None:
        return float(passed.sessions)
    above, below = passed.figures["share"] - PROMISED_SHARE, PROMISED_SHARE - failed.figures["share"]
    return float(passed.sessions * (failed.sessions / passed.sessions) ** (above / (above + below)))
