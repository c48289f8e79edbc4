"""Judges one trial: the share of the answerable pauses that got their first text in time. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from loadtest.bench.capacity.texts import Key, key_of
from loadtest.bench.common.figures import percentile
from loadtest.driving.driver import Run
from loadtest.search.capacity import Trial
from loadtest.targets.record import Result

SHARE = "share"
"""The figure that decides a trial."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise to a user who waits."""

    within_s: float = 0.25
    """Largest time from the intended time to the first visible text."""
    share: float = 0.9
    """Of the answerable pauses."""

    def judge(self, sessions: int, run: Run, answerable: Collection[Key]) -> Trial:
        """Return the trial. Without an answerable pause nothing is broken, so it passes."""
        pauses = [each for each in run.results if each.request.is_pause and key_of(each.request) in answerable]
        in_time = [each for each in pauses if each.ttft_s is not None and each.ttft_s <= self.within_s]
        share = len(in_time) / len(pauses) if pauses else 1.0
        figures = {
            SHARE: share,
            "pauses": float(len(pauses)),
            "ttft_ms_p95": percentile([each.ttft_s * 1000 for each in pauses if each.ttft_s is not None], 95),
            "lag_ms_p99": percentile([each.lag_s * 1000 for each in run.results], 99),
        }
        missed = Counter(_cause(each) for each in pauses if each not in in_time)
        return Trial(sessions, share >= self.share, figures | {f"missed_{why}": n for why, n in missed.items()})


def _cause(result: Result) -> str:
    """Return why a pause was not answered in time."""
    return "late" if result.ttft_s is not None else result.outcome.value


def crossing(trials: Sequence[Trial], share: float) -> float:
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
    above, below = passed.figures[SHARE] - share, share - failed.figures[SHARE]
    return float(passed.sessions * (failed.sessions / passed.sessions) ** (above / (above + below)))
