"""The search for a capacity, the highest session count at which a gate holds. The caller supplies the runs.

Counts grow by a factor, 2 by default, until one fails; if already the first fails, they shrink by it. The gap between
the highest count that passed and the lowest that failed is then halved until it is small. The majority of its runs
decides a count, so that one unlucky run moves no bound.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The range and the precision of a search."""

    from_sessions: int
    to_sessions: int
    tolerance: float = 0.05
    """Largest final gap between the highest passing and the lowest failing count, as a share of the former."""
    repeats: int = 3
    """Runs of each count, an odd number. A count is decided as soon as a majority agrees."""
    growth: float = 2.0
    """Factor between counts while no bound is known on one side. A small one suits a start near the answer."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run at one session count."""

    sessions: int
    is_passed: bool
    figures: Mapping[str, float] = field(default_factory=dict)
    invalid_because: tuple[str, ...] = ()
    """Why the run is invalid; an invalid run counts as failed."""
    is_interrupted: bool = False
    """Whether the run was interrupted; it then counts neither as passed nor as failed."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The result of a search."""

    sessions: int
    """The highest count that passed; 0 if a single session fails."""
    fails_at: int | None
    """The lowest count that failed; None if the largest count in range passes."""
    is_generator_bound: bool
    """Whether the failing runs were invalid: the generator was the limit, and the target may serve more."""
    trials: tuple[Trial, ...]
    is_interrupted: bool = False


class Bisection:
    """Chooses the next session count from the results of earlier runs."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._trials: list[Trial] = []
        self._passes = 0
        self._fails: int | None = None
        self.next_sessions: int | None = settings.from_sessions
        """The count to run next; None when the search is over."""

    def num_runs(self, sessions: int) -> int:
        """Return the number of runs of a count."""
        return sum(each.sessions == sessions for each in self._trials)

    def record(self, trial: Trial) -> None:
        """Record a run of `next_sessions`."""
        self._trials.append(trial)
        runs = [each.is_passed for each in self._trials if each.sessions == trial.sessions]
        majority = self._settings.repeats // 2 + 1
        if sum(runs) >= majority:
            self._passes = trial.sessions
        elif len(runs) - sum(runs) >= majority:
            self._fails = trial.sessions
        else:
            return
        self.next_sessions = self._choose()

    def capacity(self) -> Capacity:
        """Return the result so far, which is final when the search is over."""
        failed = [each for each in self._trials if each.sessions == self._fails and not each.is_passed]
        is_bound = bool(failed) and sum(bool(each.invalid_because) for each in failed) * 2 > len(failed)
        return Capacity(self._passes, self._fails, is_bound, tuple(self._trials))

    def _choose(self) -> int | None:
        growth = self._settings.growth
        if self._fails is None:
            larger = min(max(self._passes + 1, int(self._passes * growth)), self._settings.to_sessions)
            return larger if larger > self._passes else None
        if self._passes == 0 and self._fails > 1:
            return max(1, min(self._fails - 1, int(self._fails / growth)))
        gap = self._fails - self._passes
        return self._passes + gap // 2 if gap > max(1, self._settings.tolerance * self._passes) else None


def find_capacity(settings: SearchSettings, run_once: Callable[[int, int], Trial]) -> Capacity:
    """Search for the highest count that passes. An interrupted run ends the search and does not count.

    `run_once` runs a session count once; its second argument is the number of earlier runs of that count.
    """
    search = Bisection(settings)
    while (sessions := search.next_sessions) is not None:
        trial = run_once(sessions, search.num_runs(sessions))
        if trial.is_interrupted:
            return replace(search.capacity(), is_interrupted=True)
        search.record(trial)
    return search.capacity()
