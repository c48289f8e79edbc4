"""A round: finds the capacity of every contestant on one trace, with one trial of each in turn. Knows no servers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.bench.capacity.estimates import Capacities, editors
from loadtest.search.capacity import Bisection, SearchSettings, Trial

_TOLERANCE = 0.25
"""Rough, because the capacity is interpolated between the last two bounds, and rounds are averaged."""
_FIRST_GROWTH, _LATER_GROWTH = 2.0, 1.25

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
    first = number % len(names)
    order = (*names[first:], *names[:first])
    searches = {name: Bisection(limits.search(before.get(name, ()))) for name in order}
    while any(search.next_sessions is not None for search in searches.values()):
        for name, search in searches.items():
            if search.next_sessions is not None:
                search.record(await run_trial(name, search.next_sessions))
    return {name: searches[name].capacity().trials for name in names}
