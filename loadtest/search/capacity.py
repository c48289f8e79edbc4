"""Capacity search: finds the highest session count at which a gate holds. The caller supplies the runs.

Counts double until one fails. The gap between the highest count that passed and the lowest that failed is then halved
until it is small. The majority of its runs decides a count, so that one unlucky run moves no bound.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


class SearchError(Exception):
    """A search can't begin; the message says why."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Where to look."""

    from_sessions: int
    to_sessions: int
    tolerance: float = 0.05
    """How far apart the highest that passes and the lowest that fails may be in the end, as a share of the former."""
    repeats: int = 3
    """Runs of each count; a count is decided as soon as most of them agree."""

    def __post_init__(self) -> None:
        """Refuse what is no search."""
        checks = (
            (self.from_sessions >= 1, f"from must be at least 1, got {self.from_sessions}"),
            (
                self.from_sessions <= self.to_sessions,
                f"to must be at least from, {self.from_sessions}, got {self.to_sessions}",
            ),
            (0 < self.tolerance < 1, f"tolerance must be above 0 and below 1, got {self.tolerance:g}"),
            (self.repeats >= 1 and self.repeats % 2 == 1, f"repeats must be odd and at least 1, got {self.repeats}"),
        )
        for is_good, message in checks:
            if not is_good:
                raise SearchError(message)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one count."""

    sessions: int
    is_passed: bool
    figures: Mapping[str, float] = field(default_factory=dict)
    invalid_because: tuple[str, ...] = ()
    """Why it says nothing of the target; it then counts as failed."""
    is_interrupted: bool = False
    """It was broken off and says nothing at all."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a search found."""

    sessions: int
    """The highest count that passed; 0 where a single session fails."""
    fails_at: int | None
    """The lowest that failed; None where the highest that was asked for passes."""
    is_generator_bound: bool
    """Whether the failing runs were invalid: then the generator gave out, and the target may do more."""
    trials: tuple[Trial, ...]
    is_interrupted: bool = False


class Bisection:
    """Which count to run next, from what became of those before."""

    def __init__(self, settings: SearchSettings) -> None:
        """Begin at the lowest."""
        self._settings = settings
        self._trials: list[Trial] = []
        self._passes = 0
        self._fails: int | None = None
        self._next: int | None = settings.from_sessions

    @property
    def next_sessions(self) -> int | None:
        """The count to run next; None when the search is over."""
        return self._next

    def num_runs(self, sessions: int) -> int:
        """Return how often a count was run."""
        return sum(each.sessions == sessions for each in self._trials)

    def record(self, trial: Trial) -> None:
        """Take in a run of `next_sessions`.

        Raises:
            ValueError: it is of another count.

        """
        if trial.sessions != self._next:
            msg = f"a run of {trial.sessions} sessions, expected {self._next}"
            raise ValueError(msg)
        self._trials.append(trial)
        verdict = self._verdict(trial.sessions)
        if verdict is None:
            return
        if verdict:
            self._passes = trial.sessions
        else:
            self._fails = trial.sessions
        self._next = self._choose()

    def capacity(self) -> Capacity:
        """Return what is known; the answer when the search is over."""
        failed = [each for each in self._trials if each.sessions == self._fails and not each.is_passed]
        is_bound = bool(failed) and sum(bool(each.invalid_because) for each in failed) * 2 > len(failed)
        return Capacity(self._passes, self._fails, is_bound, tuple(self._trials))

    def _verdict(self, sessions: int) -> bool | None:
        """Return what most runs of a count say; None while that is open."""
        runs = [each.is_passed for each in self._trials if each.sessions == sessions]
        needed = self._settings.repeats // 2 + 1
        if sum(runs) >= needed:
            return True
        return False if len(runs) - sum(runs) >= needed else None

    def _choose(self) -> int | None:
        if self._fails is None:
            return (
                min(self._passes * 2, self._settings.to_sessions) if self._passes < self._settings.to_sessions else None
            )
        gap = self._fails - self._passes
        if gap <= max(1, self._settings.tolerance * self._passes):
            return None
        return self._passes + gap // 2


RunOnce = Callable[[int, int], Trial]
"""Runs so many sessions once; the second number says how often that count was run before."""


def find_capacity(
    settings: SearchSettings, run_once: RunOnce, on_trial: Callable[[Trial], None] | None = None
) -> Capacity:
    """Search for the highest count that passes; an interrupted run ends the search and does not count."""
    search = Bisection(settings)
    while (sessions := search.next_sessions) is not None:
        trial = run_once(sessions, search.num_runs(sessions))
        if trial.is_interrupted:
            return replace(search.capacity(), is_interrupted=True)
        search.record(trial)
        if on_trial is not None:
            on_trial(trial)
    return search.capacity()
