"""The figures of a lost region, and what they are held to. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.bench.regions.course import Course
from loadtest.bench.runner.figures import is_seen
from loadtest.report.document import Condition
from loadtest.report.figures import MAX_LAG_MS
from loadtest.targets.record import Outcome, Result
from loadtest.traffic.sections import CriteriaSettings

BUDGET_MS = 300.0
"""Within this each user's next request is answered elsewhere."""

_SETTLE_S = 3.0
"""Of a run's start, which count for nothing: the servers see each document for the first time."""
_FIRST_S = 1.0
_NEARLY_ALL = 0.99
"""A request to which nothing came for a moment is sent elsewhere alone; so a region seldom has all of them."""
_LOOK_S = 1.0
"""How long after the first check of a region that is back the first user may be seen there."""
_MS = 1000.0
LOST = (Outcome.ERROR, Outcome.UNANSWERED)
_NEAREST = 0

Figures = Mapping[str, float]
"""By name; nan for missing data, infinity for a request that was never answered."""


@dataclass(frozen=True, slots=True)
class RunPhase:
    """A part of the run."""

    name: str
    from_s: float
    to_s: float

    def has(self, at_s: float) -> bool:
        """Return whether a time is in it."""
        return self.from_s <= at_s < self.to_s


def phases(course: Course) -> tuple[RunPhase, ...]:
    """Return the phases: before the loss, while the region is away, and after it is back."""
    settled_s = min(_SETTLE_S, course.lost_at_s / 2)
    return (
        RunPhase("before", settled_s, course.lost_at_s),
        RunPhase("away", course.lost_at_s, course.back_at_s),
        RunPhase("back", course.back_at_s, course.duration_s),
    )


def figures(course: Course, criteria: CriteriaSettings, return_spread_s: float) -> Figures:
    """Return all figures. Users return over `return_spread_s` from the first on."""
    found: dict[str, float] = {"editors": course.num_editors, "requests": len(course.results)}
    before = [present for at_s, present in course.presence if at_s < course.lost_at_s]
    at_nearest = before[-1].get(_NEAREST, 0) if before else 0
    found["nearest_share_before"] = at_nearest / max(1, course.num_editors)
    found |= _losses(course) | _next_requests(course) | _return(course, return_spread_s)
    for phase in phases(course):
        found |= {f"{name}_{phase.name}": value for name, value in _of_phase(course, phase, criteria).items()}
    return found


def _losses(course: Course) -> dict[str, float]:
    """Count lost requests: those that failed or had no end, of whoever still waited for them or not."""
    in_flight = {_key(each) for each in course.results if is_in_flight(each, course.lost_at_s)}
    lost = [each for each in course.results if each.outcome in LOST]
    wanted = [each for each in lost if (each.ended_at_s or math.inf) <= each.request.next_key_at_s]
    return {
        "in_flight": len(in_flight),
        "lost": len(lost),
        "lost_in_flight": sum(_key(each) in in_flight for each in lost),
        "lost_others": sum(_key(each) not in in_flight for each in lost),
        "lost_wanted": len(wanted),
        "resent": sum(each.num_sent > 1 for each in course.results),
        "duplicates": sum(each.num_duplicates for each in course.results),
    }


def is_in_flight(result: Result, at_s: float) -> bool:
    """Return whether a request had been sent at a time, and had not ended."""
    was_sent = result.region is not None and result.sent_at_s <= at_s
    return was_sent and (result.ended_at_s is None or result.ended_at_s > at_s)


def _next_requests(course: Course) -> dict[str, float]:
    """Return the times of the first request of each user after the loss, and of all in the first second.

    Only requests count whose user waits for the whole budget: whether the next key comes sooner depends on the user
    alone, not on the answer, so this leaves out slow answers no more than quick ones.
    """
    away = [each for each in course.results if course.lost_at_s <= each.request.intended_at_s < course.back_at_s]
    patient = [each for each in away if _waits_ms(each) >= BUDGET_MS and each.outcome is not Outcome.CACHED]
    first: dict[int, Result] = {}
    for each in patient:
        first.setdefault(each.request.session, each)
    soon = [each for each in patient if each.request.intended_at_s < course.lost_at_s + _FIRST_S]
    elsewhere = [each for each in first.values() if each.region != _NEAREST]
    next_ms = [answered_ms(each) for each in first.values()]
    reconnects_ms = [seconds * _MS for seconds in course.reconnects_s]
    return {
        "next_users": len(first),
        "next_elsewhere_share": len(elsewhere) / len(first) if first else math.nan,
        "next_in_time_share": sum(each <= BUDGET_MS for each in next_ms) / len(first) if first else math.nan,
        **_percentiles("next_ms", next_ms),
        "first_second_requests": len(soon),
        **_percentiles("first_second_ms", [answered_ms(each) for each in soon]),
        **_percentiles("stream_away_ms", reconnects_ms),
    }


def _return(course: Course, return_spread_s: float) -> dict[str, float]:
    """Return how users came back: when the first did, how long after it some shares had, and how steeply.

    A user returns with a request. So those who type nothing for a while are counted late, and the share of the nearest
    region among the requests after the spread tells whether all who could return have. Users who send nothing while a
    server is silent do not notice and stay there, so the first return is the first rise.
    """
    shares = [
        (at_s, present.get(_NEAREST, 0) / max(1, course.num_editors))
        for at_s, present in course.presence
        if at_s >= course.back_at_s
    ]
    first_s = _first_rise_s(shares)
    found = {"first_back_s": first_s - course.back_at_s}
    for percent in (50, 90, 99):
        reached_s = next((at_s for at_s, share in shares if share >= percent / 100), math.inf)
        found[f"back_s_p{percent}"] = reached_s - first_s
    found["back_share"] = shares[-1][1] if shares else math.nan
    found["back_max_share_per_s"] = _steepest(shares)
    sent = [each for each in course.results if each.outcome is not Outcome.CACHED and each.region is not None]
    late = [each for each in sent if each.request.intended_at_s >= first_s + return_spread_s + _LOOK_S]
    found["returned_share"] = sum(each.region == _NEAREST for each in late) / len(late) if late else math.nan
    served = [each for each in sent if each.region == _NEAREST and each.request.intended_at_s >= course.back_at_s]
    ttft_ms = [each.ttft_s * _MS for each in served if each.ttft_s is not None]
    return found | _percentiles("returned_ttft_ms", ttft_ms)


def _first_rise_s(shares: Sequence[tuple[float, float]]) -> float:
    """Return the first time at which a share is larger than before; nan if there is none."""
    lowest = shares[0][1] if shares else 0.0
    for at_s, share in shares:
        if share > lowest:
            return at_s
        lowest = share
    return math.nan


def _steepest(shares: Sequence[tuple[float, float]]) -> float:
    """Return the largest rise of a share within about a second."""
    most, start = 0.0, 0
    for place, (at_s, share) in enumerate(shares):
        while shares[start][0] < at_s - 1.0 - 1e-6:
            start += 1
        most = max(most, share - min(each for _at_s, each in shares[start : place + 1]))
    return most


def _of_phase(course: Course, phase: RunPhase, criteria: CriteriaSettings) -> dict[str, float]:
    results = [each for each in course.results if phase.has(each.request.intended_at_s)]
    sent = [each for each in results if each.outcome is not Outcome.CACHED]
    ttft_ms = [each.ttft_s * _MS for each in sent if each.ttft_s is not None]
    lags_ms = [lag_s * _MS for at_s, lag_s in course.loop_lags if phase.has(at_s)]
    length_s = max(1e-9, phase.to_s - phase.from_s)
    return {
        "requests_per_s": len(results) / length_s,
        "seen_per_s": sum(is_seen(each, criteria) for each in results) / length_s,
        "shed": sum(each.outcome is Outcome.SHED for each in results),
        **_percentiles("ttft_ms", ttft_ms, (50, 95, 99)),
        **_percentiles("lag_ms", [each.lag_s * _MS for each in sent], (99,)),
        **_percentiles("loop_lag_ms", lags_ms, (99, 100)),
    }


def answered_ms(result: Result) -> float:
    """Return the time from a request to its first text, or its end if the completion is empty; else infinity."""
    if result.ttft_s is not None:
        return result.ttft_s * _MS
    if result.outcome is Outcome.EMPTY and result.ended_at_s is not None:
        return (result.ended_at_s - result.request.intended_at_s) * _MS
    return math.inf


def gates(return_spread_s: float, criteria: CriteriaSettings) -> tuple[Condition, ...]:
    """Return what the figures are held to. Users return over `return_spread_s` from the first on."""
    return (
        Condition("nearest_share_before", ">=", _NEARLY_ALL),
        Condition("lost_others", "==", 0),
        Condition("next_elsewhere_share", "==", 1),
        Condition("next_ms_max", "<=", BUDGET_MS),
        Condition("duplicates", "==", 0),
        Condition("back_s_p50", ">=", return_spread_s / 4),
        Condition("returned_share", ">=", _NEARLY_ALL),
        Condition("back_max_share_per_s", "<=", min(1.0, 3 / return_spread_s)),
        Condition("returned_ttft_ms_p99", "<=", criteria.slo_ttft_ms),
    )


def invalid_because(found: Figures) -> tuple[str, ...]:
    """Return why the figures say nothing about the servers and the client: the generator was late itself."""
    late = {phase: found[f"lag_ms_p99_{phase}"] for phase in ("before", "away", "back")}
    return tuple(
        f"the generator was late: its p99 lag {phase.replace('away', 'while the region was away')} is {lag_ms:.1f} ms, "
        f"more than {MAX_LAG_MS:g} ms; let the editors type more slowly (--pace) or take fewer (--sessions)"
        for phase, lag_ms in late.items()
        if lag_ms > MAX_LAG_MS
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is at least as large as a share of all; nan for none. Infinity is a value."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _percentiles(name: str, values: Sequence[float], percents: Sequence[float] = (50, 95, 99, 100)) -> dict[str, float]:
    named = {100: "max"}
    return {f"{name}_{named.get(int(each), f'p{each:g}')}": percentile(values, each) for each in percents}


def _waits_ms(result: Result) -> float:
    return (result.request.next_key_at_s - result.request.intended_at_s) * _MS


def _key(result: Result) -> tuple[int, int]:
    return result.request.session, result.request.sequence
