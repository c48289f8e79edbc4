"""Rounds: each finds the capacity of all contestants on one trace, with one trial of each in turn. Knows no servers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.bench.runner.figures import ratio as ratio_of
from loadtest.bench.runner.schedule import rotated
from loadtest.search import Bisection, SearchSettings, Trial
from loadtest.tuning.choice import MIN_ROUNDS, Estimate

_LEAST_EDITORS = 0.5
"""Stands for a capacity of 0, of which there is no ratio."""
_TOLERANCE = 0.25
"""Rough, because the capacity is interpolated between the last two bounds, and rounds are averaged."""
_FIRST_GROWTH, _LATER_GROWTH = 2.0, 1.25

Capacities = Mapping[str, Sequence[float]]
"""Editors by contestant, one number for each round; the same place is the same trace."""

RunTrial = Callable[[str, int], Awaitable[Trial]]
"""Runs a contestant, given by name, with a number of editors."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers of editors that are tried."""

    start: int
    most: int

    def search(self, capacities: Sequence[float]) -> SearchSettings:
        """Return the search of the next round: around the capacity of the earlier ones, if there are any."""
        if not capacities:
            return SearchSettings(min(self.start, self.most), self.most, _TOLERANCE, 1, _FIRST_GROWTH)
        start = min(self.most, max(1, round(editors(capacities).value)))
        return SearchSettings(start, self.most, _TOLERANCE, 1, _LATER_GROWTH)


async def run_round(
    number: int, names: Sequence[str], before: Capacities, limits: Range, run_trial: RunTrial
) -> Mapping[str, tuple[Trial, ...]]:
    """Search for each contestant's capacity; `before` has those of the earlier rounds. Return the trials.

    The contestants take turns trial by trial, in an order that rotates from round to round, so that a drift of the
    machine affects all of them.
    """
    searches = {name: Bisection(limits.search(before.get(name, ()))) for name in rotated(names, number)}
    while any(search.next_sessions is not None for search in searches.values()):
        for name, search in searches.items():
            if search.next_sessions is not None:
                search.record(await run_trial(name, search.next_sessions))
    return {name: searches[name].capacity().trials for name in names}


def editors(capacities: Sequence[float]) -> Estimate:
    """Return the geometric mean over rounds, with an interval if there are enough rounds."""
    return ratio(capacities, [1.0] * len(capacities))


def ratio(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the geometric mean of first / second over rounds; the interval is nan with too few rounds."""
    return ratio_of(first, second, _LEAST_EDITORS)


def is_decided(capacities: Capacities, ours: str) -> bool:
    """Return whether our server's ratio to each other contestant differs from 1 beyond noise."""
    found = [ratio(capacities[ours], theirs) for name, theirs in capacities.items() if name != ours]
    return all(each.low > 1 or each.high < 1 for each in found)


def is_another_round_due(
    num_rounds: int, *, has_decided: bool, elapsed_s: float, round_s: float, limit_s: float
) -> bool:
    """Return whether to go on: until an interval exists, then until it decides or the next round comes too late."""
    if num_rounds < MIN_ROUNDS:
        return True
    return not has_decided and elapsed_s + round_s <= limit_s
