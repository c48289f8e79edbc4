"""Finds differences between two runs that exceed noise, with a block bootstrap over their slices.

Slices are drawn again, with replacement, in blocks of neighbours, because neighbouring slices are correlated. Their
counters and histograms are summed and the figures computed anew. The spread over 2,000 samples is the uncertainty of a
figure. Runs of the same trace are paired: both draw the same slices, so the effects of the traffic cancel out. With few
blocks the spread is too small, so intervals are widened by the ratio of Student's t to the normal distribution. Künsch,
"The Jackknife and the Bootstrap for General Stationary Observations", Ann. Statist. 17 (1989).
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import ndtri, stdtrit

from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.figures import FIGURES, Array, Figure, Sums, ratio, rounded, slice_durations_s
from loadtest.stats import RunStats
from loadtest.traffic.sections import CriteriaSettings

MIN_SLICES = 8
"""With fewer slices the noise can't be estimated."""
CONFIDENCE = 0.95

_NUM_SAMPLES = 2000
_SEED = 20
_MIN_WITH_VALUE = 0.5
"""Smallest share of samples that must have the figure for a verdict."""

Change = Literal["worse", "better", "different", "within noise", "noise unknown"]
"""The change of a figure from A to B.

"different": the figure has no good direction. "noise unknown": it isn't recorded by slice, or there are too few slices.
"""
Interval = tuple[float, float]
_UNKNOWN = (math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure in A and in B. Intervals are nan if unknown."""

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
    """The differences of two runs, of one target or of two, the worse figures first."""

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
        """Return them for JSON, the figures by name; null for a value or an interval that is unknown."""
        found = asdict(self)
        for each in (figures := found.pop("differences")):
            for name in ("first", "second"):
                each[name] = rounded(each[name])
            for name in ("difference", "ratio"):
                each[name] = None if math.isnan(each[name][0]) else [rounded(end) for end in each[name]]
        return found | {"figures": {each.pop("figure"): each for each in figures}}


def compare(
    documents: tuple[RunDocument, RunDocument],
    targets: tuple[TargetResult, TargetResult],
    confidence: float = CONFIDENCE,
) -> RunDifferences:
    """Compare a target of a document with one of another, by the criteria of the first document."""
    (first, second), runs = documents, (targets[0].stats, targets[1].stats)
    counts = [len(slice_durations_s(each)) for each in runs]
    is_paired = first.schedule_digest == second.schedule_digest and counts[0] == counts[1]
    is_paired = is_paired and runs[0].slice_s == runs[1].slice_s
    warnings = [*_warnings(documents, targets)]
    if min(counts) < MIN_SLICES:
        warnings.append(f"too few slices to tell noise: {min(counts)}, at least {MIN_SLICES} are needed")
    found = sorted(
        _differences(runs, first.criteria, confidence, is_paired=is_paired),
        key=lambda each: get_args(Change).index(each.change),
    )
    names = (targets[0].name, targets[1].name)
    return RunDifferences(*names, is_paired, min(counts), confidence, tuple(found), tuple(warnings))


def _differences(
    runs: tuple[RunStats, RunStats], criteria: CriteriaSettings, confidence: float, *, is_paired: bool
) -> Iterator[Difference]:
    counts = [len(slice_durations_s(each)) for each in runs]
    samples = None
    if min(counts) >= MIN_SLICES:
        chance = np.random.default_rng(_SEED)
        weights = [block_weights(counts[0], chance)]
        weights.append(weights[0] if is_paired else block_weights(counts[1], chance))
        samples = [Sums.of_slices(each, drawn) for each, drawn in zip(runs, weights, strict=True)]
    totals, slices = [Sums.of_total(each) for each in runs], [Sums.of_slices(each) for each in runs]
    for figure in FIGURES.values():
        a, b = (float(figure.compute(each, criteria)[0]) for each in totals)
        if math.isnan(a) and math.isnan(b):
            continue
        difference = relation = _UNKNOWN
        if samples is not None and all(_is_sliced(figure, *each) for each in zip(totals, slices, strict=True)):
            drawn = [figure.compute(each, criteria) for each in samples]
            wide = widening(min(counts), confidence)
            difference = _interval(drawn[1] - drawn[0], confidence, wide)
            relation = _interval(ratio(drawn[1], drawn[0]), confidence, wide)
        yield Difference(figure.name, a, b, _change(figure, difference), difference, relation)


def block_length(num_slices: int) -> int:
    """Return the block length: the cube root of the number of slices, the optimal rate for a variance."""
    return max(1, round(math.cbrt(num_slices)))


def block_weights(num_slices: int, chance: np.random.Generator, num_samples: int = _NUM_SAMPLES) -> Array:
    """Return the count of each slice in each sample, of shape (samples, slices); blocks wrap around."""
    length = block_length(num_slices)
    starts = chance.integers(num_slices, size=(num_samples, math.ceil(num_slices / length), 1))
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


def _interval(samples: Array, confidence: float, wide: float) -> Interval:
    found = samples[~np.isnan(samples)]
    if len(found) < _MIN_WITH_VALUE * len(samples):
        return _UNKNOWN
    low, middle, high = np.percentile(found, [50 - 50 * confidence, 50, 50 + 50 * confidence])
    return float(middle - (middle - low) * wide), float(middle + (high - middle) * wide)


def _change(figure: Figure, difference: Interval) -> Change:
    low, high = difference
    if math.isnan(low):
        return "noise unknown"
    if low <= 0 <= high:
        return "within noise"
    if figure.better == "neither":
        return "different"
    return "better" if (low > 0) is (figure.better == "higher") else "worse"


def _warnings(documents: tuple[RunDocument, RunDocument], targets: tuple[TargetResult, TargetResult]) -> Iterator[str]:
    """Yield what spoils a comparison: different scenarios or traces, interruptions, invalid runs."""
    first, second = documents
    keys = sorted((first.scenario.keys() | second.scenario.keys()) - {"name", "description"})
    if differ := [key for key in keys if first.scenario.get(key) != second.scenario.get(key)]:
        yield f"the runs are of different scenarios: they differ in {', '.join(differ)}"
    elif first.schedule_digest != second.schedule_digest:
        yield "the runs have different traces, so they are compared unpaired and less sharply"
    for label, document, target in zip("AB", documents, targets, strict=True):
        if document.interrupted:
            yield f"{label} was interrupted"
        for reason in target.invalid_because:
            yield f"{label} {target.name} is invalid: {reason}"
