"""Finds differences between two runs that exceed noise, with a block bootstrap over their slices.

Slices are drawn again, with replacement, in blocks of neighbours, because neighbouring slices are correlated. Their
counters and histograms are summed and the figures computed anew. The spread over 2,000 samples is the uncertainty of a
figure. Runs of the same trace are paired: both draw the same slices, so the effects of the traffic cancel out. With few
blocks the spread is too small, so intervals are widened by the ratio of Student's t to the normal distribution. Künsch,
"The Jackknife and the Bootstrap for General Stationary Observations", Ann. Statist. 17 (1989).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

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
    """The change of a figure from A to B, in the order of a report."""

    WORSE = "worse"
    BETTER = "better"
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
    confidence: float
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return them for JSON, the figures by name."""
        figures = {
            each.figure: {
                "first": _number(each.first),
                "second": _number(each.second),
                "change": each.change.value,
                "difference": _ends(each.difference),
                "ratio": _ends(each.ratio),
            }
            for each in self.differences
        }
        return {name: value for name, value in asdict(self).items() if name != "differences"} | {"figures": figures}


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
    for pair in pairs:
        invalid = [
            f"{label} {each.name} is invalid: {reason}"
            for label, each in zip("AB", pair, strict=True)
            for reason in each.invalid_because
        ]
        runs, names = (pair[0].stats, pair[1].stats), (pair[0].name, pair[1].name)
        found.append(
            compare(
                *runs,
                first.criteria,
                is_paired=is_paired,
                names=names,
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
    runs = (first, second)
    counts = [len(slice_durations_s(each)) for each in runs]
    is_paired = is_paired and counts[0] == counts[1] and first.slice_s == second.slice_s
    said, samples, widened = list(warnings), None, math.nan
    if min(counts) < MIN_SLICES:
        said.append(f"too few slices to tell noise: {min(counts)}, at least {MIN_SLICES} are needed")
    else:
        chance, widened = np.random.default_rng(_SEED), widening(min(counts), confidence)
        weights = block_weights(counts[0], chance)
        others = weights if is_paired else block_weights(counts[1], chance)
        samples = [Sums.of_slices(first, weights), Sums.of_slices(second, others)]
    totals, slices = [Sums.of_total(each) for each in runs], [Sums.of_slices(each) for each in runs]
    differences = []
    for figure in FIGURES.values():
        a, b = (float(figure.compute(each, criteria)[0]) for each in totals)
        if math.isnan(a) and math.isnan(b):
            continue
        difference = relation = Interval()
        if samples is not None and all(_is_sliced(figure, *each) for each in zip(totals, slices, strict=True)):
            drawn = [figure.compute(each, criteria) for each in samples]
            difference = _interval(drawn[1] - drawn[0], confidence, widened)
            relation = _interval(ratio(drawn[1], drawn[0]), confidence, widened)
        differences.append(Difference(figure.name, a, b, _change(figure, difference), difference, relation))
    return RunDifferences(*names, is_paired, min(counts), confidence, tuple(differences), tuple(said))


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


def widening(num_slices: int, confidence: float) -> float:
    """Return by how much an interval from so many slices is too narrow.

    Student's quantile over the normal one, with a degree of freedom less than there are blocks, and the bias of their
    variance.
    """
    num_blocks = num_slices / block_length(num_slices)
    freedom, quantile = num_blocks - 1, 0.5 + confidence / 2
    return float(stdtrit(freedom, quantile) / ndtri(quantile) * math.sqrt(num_blocks / freedom))


def _is_sliced(figure: Figure, total: Sums, slices: Sums) -> bool:
    """Return whether all data of a figure is recorded by slice, so that the slices add up to the total."""
    name = figure.histogram
    if name and total.num_recorded(name)[0] != slices.num_recorded(name)[0]:
        return False
    return all(total.counter(each)[0] == slices.counter(each)[0] for each in figure.counters)


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
    keys = sorted((first.scenario.keys() | second.scenario.keys()) - {"name", "description"})
    differ = [key for key in keys if first.scenario.get(key) != second.scenario.get(key)]
    if differ:
        return [f"the runs are of different scenarios: they differ in {', '.join(differ)}"]
    if first.schedule_digest != second.schedule_digest:
        return ["the runs have different traces, so they are compared unpaired and less sharply"]
    return []


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")


def _ends(interval: Interval) -> list[float] | None:
    return None if math.isnan(interval.low) else [float(f"{end:.6g}") for end in (interval.low, interval.high)]
