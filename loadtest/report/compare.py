"""Finds differences between two runs that exceed noise, with a block bootstrap over their slices.

Slices are drawn again, with replacement, in blocks of neighbours, because neighbouring slices are correlated. Their
counters and histograms are summed and the figures computed anew. The spread over 2,000 samples is the uncertainty of a
figure. Runs of the same trace are paired: both draw the same slices, so the effects of the traffic cancel out. With few
blocks the spread is too small, so intervals are widened by the ratio of Student's t to the normal distribution. Künsch,
"The Jackknife and the Bootstrap for General Stationary Observations", Ann. Statist. 17 (1989).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.figures import FIGURES, Array, Better, Figure, Sums, ratio, slice_durations_s
from loadtest.stats import RunStats
from loadtest.traffic.sections import CriteriaSettings

MIN_SLICES = 8
"""With fewer slices the noise can't be estimated."""
CONFIDENCE = 0.95

_NUM_SAMPLES = 2000
_SEED = 20
_MIN_WITH_VALUE = 0.5
"""Smallest share of samples that must have the figure for a verdict."""


class Change(Enum):
    """The change of a figure from A to B."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    """The figure has no good direction."""
    WITHIN_NOISE = "within noise"
    UNKNOWN = "noise unknown"
    """The figure is not recorded by slice, or there are too few slices."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; nan if unknown."""

    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure in A and in B."""

    figure: str
    first: float
    second: float
    change: Change
    difference: Interval
    """Interval of B - A."""
    ratio: Interval
    """Interval of B / A."""


@dataclass(frozen=True, slots=True)
class RunDifferences:
    """The differences of two runs, of one target or of two."""

    first: str
    second: str
    """Their names."""
    is_paired: bool
    num_slices: int
    """Slices of the run that has fewer."""
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...] = ()


def compare_documents(
    first: RunDocument,
    second: RunDocument,
    pairs: Sequence[tuple[TargetResult, TargetResult]],
    confidence: float = CONFIDENCE,
) -> tuple[RunDifferences, ...]:
    """Compare pairs of targets of two documents, with the criteria of the first."""
    warnings = _scenario_warnings(first, second)
    warnings += [f"{label} was interrupted" for label, each in (("A", first), ("B", second)) if each.interrupted]
    is_paired = first.schedule_digest == second.schedule_digest
    found = []
    for one, other in pairs:
        invalid = [
            f"{label} {each.name} is invalid: {reason}"
            for label, each in (("A", one), ("B", other))
            for reason in each.invalid_because
        ]
        found.append(
            compare(
                one.stats,
                other.stats,
                first.criteria,
                is_paired=is_paired,
                names=(one.name, other.name),
                warnings=(*warnings, *invalid),
                confidence=confidence,
            )
        )
    return tuple(found)


def compare(
    first: RunStats,
    second: RunStats,
    criteria: CriteriaSettings,
    *,
    is_paired: bool,
    names: tuple[str, str] = ("A", "B"),
    warnings: Sequence[str] = (),
    confidence: float = CONFIDENCE,
) -> RunDifferences:
    """Return the differences of two runs' figures; paired if both had the same trace and slices."""
    num_slices = (len(slice_durations_s(first)), len(slice_durations_s(second)))
    is_paired = is_paired and num_slices[0] == num_slices[1] and first.slice_s == second.slice_s
    said = list(warnings)
    if min(num_slices) < MIN_SLICES:
        said.append(f"too few slices to tell noise: {min(num_slices)}, at least {MIN_SLICES} are needed")
        weights, widened = None, 1.0
    else:
        weights, widened = _draw(num_slices, is_paired=is_paired), widening(min(num_slices), confidence)
    interval = partial(_interval, confidence=confidence, widened=widened)
    sides = [_Side.of(stats, weights and weights[place]) for place, stats in enumerate((first, second))]
    differences = []
    for figure in FIGURES.values():
        values = [side.value(figure, criteria) for side in sides]
        if not all(map(math.isnan, values)):
            drawn = [side.drawn(figure, criteria) for side in sides]
            differences.append(_difference(figure, values, drawn, interval))
    return RunDifferences(*names, is_paired, min(num_slices), tuple(differences), tuple(said))


def block_length(num_slices: int) -> int:
    """Return the block length: the cube root of the number of slices, the optimal rate for a variance."""
    return max(1, round(math.cbrt(num_slices)))


def block_weights(num_slices: int, chance: np.random.Generator, num_samples: int = _NUM_SAMPLES) -> Array:
    """Return the count of each slice in each sample, of shape (samples, slices); blocks wrap around."""
    length = block_length(num_slices)
    num_blocks = math.ceil(num_slices / length)
    starts = chance.integers(num_slices, size=(num_samples, num_blocks, 1))
    places = ((starts + np.arange(length)) % num_slices).reshape(num_samples, -1)[:, :num_slices]
    weights = np.zeros((num_samples, num_slices))
    np.add.at(weights, (np.arange(num_samples)[:, None], places), 1)
    return weights


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two runs: its total, its slices summed, and the samples drawn from them."""

    total: Sums
    slices: Sums
    samples: Sums | None

    @classmethod
    def of(cls, stats: RunStats, weights: Array | None) -> "_Side":
        samples = None if weights is None else Sums.of_slices(stats, weights)
        return cls(Sums.of_total(stats), Sums.of_slices(stats), samples)

    def value(self, figure: Figure, criteria: CriteriaSettings) -> float:
        return float(figure.compute(self.total, criteria)[0])

    def drawn(self, figure: Figure, criteria: CriteriaSettings) -> Array | None:
        """Return a figure of each sample; None if it is not recorded by slice."""
        if self.samples is None or not self._is_sliced(figure):
            return None
        return figure.compute(self.samples, criteria)

    def _is_sliced(self, figure: Figure) -> bool:
        """Return whether all data of a figure is recorded by slice, so that the slices add up to the total."""
        name = figure.histogram
        if name and self.total.num_recorded(name)[0] != self.slices.num_recorded(name)[0]:
            return False
        return all(self.total.counter(each)[0] == self.slices.counter(each)[0] for each in figure.counters)


def _draw(num_slices: tuple[int, int], *, is_paired: bool) -> tuple[Array, Array]:
    """Return the weights of both runs' slices."""
    chance = np.random.default_rng(_SEED)
    weights = block_weights(num_slices[0], chance)
    return weights, weights if is_paired else block_weights(num_slices[1], chance)


def widening(num_slices: int, confidence: float) -> float:
    """Return by how much an interval from so many slices is too narrow.

    Student's quantile over the normal one, with a degree of freedom less than there are blocks, and the bias of their
    variance.
    """
    num_blocks = num_slices / block_length(num_slices)
    freedom = num_blocks - 1
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    t = float(stdtrit(freedom, 0.5 + confidence / 2))
    return t / z * math.sqrt(num_blocks / freedom)


def _difference(
    figure: Figure, values: Sequence[float], drawn: Sequence[Array | None], interval: Callable[[Array], Interval]
) -> Difference:
    difference = relation = Interval()
    first, second = drawn
    if first is not None and second is not None:
        difference, relation = interval(second - first), interval(ratio(second, first))
    return Difference(figure.name, values[0], values[1], _change(figure, difference), difference, relation)


def _interval(samples: Array, confidence: float, widened: float) -> Interval:
    found = samples[~np.isnan(samples)]
    if len(found) < _MIN_WITH_VALUE * len(samples):
        return Interval()
    low, middle, high = np.percentile(found, [50 - 50 * confidence, 50, 50 + 50 * confidence])
    return Interval(float(middle - (middle - low) * widened), float(middle + (high - middle) * widened))


def _change(figure: Figure, difference: Interval) -> Change:
    if math.isnan(difference.low):
        return Change.UNKNOWN
    if difference.low <= 0 <= difference.high:
        return Change.WITHIN_NOISE
    if figure.better is Better.NEITHER:
        return Change.DIFFERENT
    return Change.BETTER if (difference.low > 0) is (figure.better is Better.HIGHER) else Change.WORSE


def _scenario_warnings(first: RunDocument, second: RunDocument) -> list[str]:
    """Return the differences of two scenarios, except names and descriptions."""
    words = {"name", "description"}
    keys = sorted((first.scenario.keys() | second.scenario.keys()) - words)
    differ = [key for key in keys if first.scenario.get(key) != second.scenario.get(key)]
    if differ:
        return [f"the runs are of different scenarios: they differ in {', '.join(differ)}"]
    if first.schedule_digest != second.schedule_digest:
        return ["the runs have different traces, so they are compared unpaired and less sharply"]
    return []
