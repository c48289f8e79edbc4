"""Scores completions: shares and means with their confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from target_model.evaluation.tasks import Task, is_exact
from target_model.sandbox.runner import Limits, ProgramResult, run_programs

Z_95 = 1.959964


def wilson(hits: float, total: float) -> tuple[float, float]:
    """Wilson's 95% interval of the share behind `hits` of `total`; accurate near 0 and 1 too."""
    if not total:
        return 0.0, 1.0
    value, spread = hits / total, Z_95**2 / total
    middle = (value + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * math.sqrt(value * (1 - value) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Share:
    """`hits` of `total`, and Wilson's 95% interval of the share behind them.

    `num_independent` is the effective number of independent trials: `total` by default.
    """

    hits: int
    total: int
    num_independent: float | None = None
    interval: tuple[float, float] = field(init=False)
    """A field, not a property, so that it is in the JSON."""

    def __post_init__(self) -> None:
        """Compute the interval."""
        independent = self.total if self.num_independent is None else self.num_independent
        object.__setattr__(self, "interval", wilson(self.value * independent, independent))

    @property
    def value(self) -> float:
        """The share, 0 to 1."""
        return self.hits / self.total if self.total else 0.0

    def __str__(self) -> str:
        """As in "4.7% (3.5 to 6.3)"."""
        low, high = self.interval
        return f"{self.value:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def share_of_groups(outcomes: Sequence[bool], groups: Sequence[object]) -> Share:
    """The share of true outcomes, whose correlation within groups reduces the effective number of trials.

    The number of outcomes is divided by the design effect: the variance of the share over draws of whole groups (ratio
    estimator, linearised), over that of independent outcomes (Kish, "Survey Sampling", 1965, section 8.2). If all
    outcomes are equal, the correlation can't be estimated, and each counts.
    """
    of_group: dict[object, list[bool]] = {}
    for outcome, group in zip(outcomes, groups, strict=True):
        of_group.setdefault(group, []).append(outcome)
    hits, total, num_groups = sum(outcomes), len(outcomes), len(of_group)
    if hits in {0, total}:
        return Share(hits, total, total)
    if num_groups == 1:
        return Share(hits, total, 1)
    value = hits / total
    squares = math.fsum((sum(some) - value * len(some)) ** 2 for some in of_group.values())
    of_groups = squares / total**2 * num_groups / (num_groups - 1)
    of_outcomes = value * (1 - value) / (total - 1)
    return Share(hits, total, total / max(1.0, of_groups / of_outcomes))


@dataclass(frozen=True)
class Mean:
    """A mean per unit over texts of several units each, and its 95% interval over draws of texts.

    `interval` is None for a single text.
    """

    value: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        """As in "2.4370 (2.3771 to 2.4969)"."""
        between = "" if self.interval is None else " ({:.4f} to {:.4f})".format(*self.interval)
        return f"{self.value:.4f}{between}"


def mean_per_unit(sums: Sequence[float], units: Sequence[int]) -> Mean:
    """The mean per unit, where text i has `units[i]` units that sum to `sums[i]`.

    The interval is over draws of whole texts: the tokens of one text are correlated (ratio estimator, linearised).
    """
    value, num = sum(sums) / sum(units), len(sums)
    if num == 1:
        return Mean(value, None)
    squares = math.fsum((total - value * size) ** 2 for total, size in zip(sums, units, strict=True))
    half = Z_95 * math.sqrt(squares * num / (num - 1)) / sum(units)
    return Mean(value, (value - half, value + half))


@dataclass(frozen=True)
class Score:
    """The score of a set of tasks: programs that pass their check, and completions equal to the author's."""

    passed: Share
    exact: Share


def score(tasks: Sequence[Task], completions: Sequence[str], limits: Limits | None = None) -> Score:
    """Run every program, one completion a task (pass@1). Lines of one problem, whose check is the same, are a group."""
    programs = (task.with_completion(completion) for task, completion in zip(tasks, completions, strict=True))
    passed = [result is ProgramResult.PASSED for result in run_programs(programs, limits)]
    exact = list(map(is_exact, tasks, completions))
    problems = [task.check for task in tasks]
    return Score(share_of_groups(passed, problems), share_of_groups(exact, problems))
