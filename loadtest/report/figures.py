"""The figures of a run: name, unit, good direction, meaning and formula of each.

A figure is computed from weighted sums of tallies, so that one definition serves a whole run, the points of a chart,
and the thousand samples of a bootstrap.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from loadtest.stats import RunStats, Tally
from loadtest.traffic.sections import CriteriaSettings

Array = npt.NDArray[np.float64]

MAX_LAG_MS = 5.0
"""Above this p99 lag the generator was not open loop, and the run is invalid."""

MAX_ERROR_RATE = 0.05
"""Above this share of failed requests a run fails, unless a gate on `error_rate` sets another limit."""

PERCENTS: Mapping[str, float] = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}


class Sums:
    """Tallies under R weightings. Every result is an array of R numbers, with nan for missing data."""

    def __init__(self, tallies: Sequence[Tally], durations_s: Array, weights: Array) -> None:
        """Take n tallies, their durations, and weights of shape (R, n)."""
        self._tallies = tallies
        self._weights = weights
        self._cumulative: dict[str, tuple[Array, Array]] = {}
        self.duration_s: Array = weights @ durations_s

    @classmethod
    def of_total(cls, stats: RunStats) -> Self:
        """Return the sum of the whole run."""
        return cls([stats.total], np.array([stats.duration_s]), np.ones((1, 1)))

    @classmethod
    def of_slices(cls, stats: RunStats, weights: Array | None = None) -> Self:
        """Return weighted sums of the slices; without weights their plain sum."""
        durations_s = slice_durations_s(stats)
        tallies = [stats.slices[place] if place < len(stats.slices) else Tally(2) for place in range(len(durations_s))]
        return cls(tallies, durations_s, np.ones((1, len(tallies))) if weights is None else weights)

    def counter(self, name: str) -> Array:
        """Return the sums of a counter; 0 if it was never counted."""
        return self._weights @ np.array([tally.counters.get(name, 0) for tally in self._tallies], dtype=np.float64)

    def num_recorded(self, histogram: str) -> Array:
        """Return the number of times in a histogram."""
        _values, cumulative = self._cumulate(histogram)
        return cumulative[:, -1] if cumulative.shape[1] else np.zeros(len(cumulative))

    def percentile_ms(self, histogram: str, percent: float) -> Array:
        """Return a percentile in milliseconds by HDR's rule: the first value that the given share does not exceed."""
        values, cumulative = self._cumulate(histogram)
        if not len(values):
            return np.full(len(cumulative), np.nan)
        totals = cumulative[:, -1]
        wanted = np.maximum(1, np.floor(percent * totals / 100 + 0.5))
        places = np.minimum((cumulative < wanted[:, None]).sum(axis=1), len(values) - 1)
        return np.where(totals > 0, values[places], np.nan)

    def _cumulate(self, name: str) -> tuple[Array, Array]:
        """Return the recorded values, rising, and the cumulative counts of shape (R, values)."""
        if name not in self._cumulative:
            arrays = [tally.histograms[name].arrays() if name in tally.histograms else None for tally in self._tallies]
            found = [each[0] for each in arrays if each is not None]
            values = np.unique(np.concatenate(found)) if found else np.empty(0)
            counts = np.zeros((len(self._tallies), len(values)))
            for row, each in zip(counts, arrays, strict=True):
                if each is not None:
                    row[np.searchsorted(values, each[0])] = each[1]
            self._cumulative[name] = values, np.cumsum(self._weights @ counts, axis=1)
        return self._cumulative[name]


def slice_durations_s(stats: RunStats) -> Array:
    """Return the duration of each slice of a run; the last one may be shorter."""
    num_slices = max(1, int(np.ceil(stats.duration_s / stats.slice_s - 1e-9)))
    if len(stats.slices) > num_slices:  # blocks that end within a slice
        return np.full(len(stats.slices), stats.duration_s / len(stats.slices))
    durations_s = np.full(num_slices, stats.slice_s)
    durations_s[-1] = stats.duration_s - stats.slice_s * (num_slices - 1)
    return durations_s


def ratio(some: Array, whole: Array) -> Array:
    """Return some / whole; nan where `whole` is 0."""
    found: Array = np.divide(some, whole, out=np.full(np.shape(whole), np.nan), where=whole != 0)
    return found


Better = Literal["higher", "lower", "neither"]
"""The good direction of a figure."""
Unit = Literal["1/s", "ms", "share", "count", "USD"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its definition."""

    name: str
    unit: Unit
    better: Better
    meaning: str
    compute: Callable[[Sums, CriteriaSettings], Array]
    counters: tuple[str, ...] = ()
    """Counters from which the figure is computed, besides the histogram."""
    histogram: str = ""


_HIGH: Better = "higher"
_LOW: Better = "lower"
_NEITHER: Better = "neither"
_COUNTED: tuple[tuple[str, str, Better, str], ...] = (
    ("offered_per_s", "intended / s", _NEITHER, "requests intended, prefetches included"),
    ("sent_per_s", "sent / s", _NEITHER, "requests sent"),
    ("seen_per_s", "seen / s", _HIGH, "completions that a user saw: soon enough, and long enough before the next key"),
    ("seen_share", "seen / intended - prefetches", _HIGH, "of typed requests, those whose text was seen"),
    ("pauses_per_s", "pauses / s", _NEITHER, "requests at which the user paused"),
    ("pause_in_time_share", "pauses_in_time / pauses", _HIGH, "of pause requests, those with text in time"),
    ("pause_right_share", "pauses_right / pauses", _HIGH,
     "of pause requests, those with text in time whose first line is the one that the user went on to type"),
    ("good_per_s", "good / s", _HIGH, "answers within the SLO, first text and end"),
    ("accepted_chars_per_s", "accepted_chars / s", _HIGH, "characters seen that the user went on to type"),
    ("accepted_share", "accepted_chars / shown_chars", _HIGH, "of characters shown, those accepted"),
    ("shown_share", "shown / intended - prefetches", _HIGH, "of typed requests, those that had text at all"),
    ("edit_share", "edits / edit_answers", _NEITHER,
     "of the whole answers to requests for a next edit, those with one"),
    ("shed_share", "outcome/shed / intended", _LOW, "of all requests, those turned away empty"),
    ("superseded_share", "outcome/superseded / intended", _NEITHER,
     "of all requests, those dropped by the server for a newer one"),
    ("hung_up_share", "outcome/hung_up / intended", _NEITHER, "of all requests, those hung up on by the editor"),
    ("cached_share", "outcome/cached / intended", _NEITHER,
     "of all requests, those answered from the editor's own cache"),
    ("local_hit_share", "cache/local / sent", _NEITHER,
     "of the requests sent, those answered from the server's completion cache in memory"),
    ("shared_hit_share", "cache/shared / sent", _NEITHER,
     "of the requests sent, those answered from the server's completion cache in Redis"),
    ("error_rate", "errors / intended", _LOW, "of all requests, those that failed"),
    ("unanswered_share", "outcome/unanswered / intended", _LOW, "of all requests, those not ended at the end"),
    ("sessions", "sessions", _NEITHER, "editors"),
    ("sessions_lost", "sessions_lost", _LOW, "editors not connected at the end"),
    ("reconnects", "reconnects", _NEITHER, "connections made again"),
)  # fmt: skip
"""Counters, per second (`/ s`), or as a share of another one."""
_TIMES = (
    ("ttft", "ttft", "intended time to first text"),
    ("pause_ttft", "ttft/pause", "intended time to first text, pause requests"),
    ("total", "total", "intended time to the end, whole answers"),
    ("pause_total", "total/pause", "intended time to the end, whole answers to pause requests"),
    ("gap", "gap", "time between texts of one answer"),
    ("lag", "lag", "how late the generator sent a request"),
    ("front_end", "stage/front_end", "first text less the server's queue and prefill"),
    ("reconnect", "reconnect", "connection lost to connected again"),
)


def _wasted(sums: Sums, _criteria: CriteriaSettings) -> Array:
    return 1 - ratio(sums.counter("seen_tokens"), sums.counter("generated_tokens"))


def _generated_per_s(sums: Sums, _criteria: CriteriaSettings) -> Array:
    """Return nan, not 0, if the target did not report its generated tokens."""
    tokens = sums.counter("generated_tokens")
    return np.where(tokens > 0, ratio(tokens, sums.duration_s), np.nan)


def _usd_per_completion(sums: Sums, criteria: CriteriaSettings) -> Array:
    usd_per_s = criteria.gpu_hour_usd * criteria.num_gpus / 3600 or math.nan
    return ratio(usd_per_s * sums.duration_s, sums.counter("seen"))


_COSTS = (
    Figure("wasted_token_share", "share", "lower", "of the generated tokens, those of answers that were not seen",
           _wasted, ("seen_tokens", "generated_tokens")),
    Figure("generated_tokens_per_s", "1/s", "neither", "tokens that the engine generated",
           _generated_per_s, ("generated_tokens",)),
    Figure("usd_per_completion", "USD", "lower", "price of the GPUs for the run, per completion seen",
           _usd_per_completion, ("seen",)),
)  # fmt: skip


def _define() -> Iterable[Figure]:
    """Yield all figures in the order of every list."""
    for name, formula, better, meaning in _COUNTED:
        counter, _, whole = formula.partition(" / ")
        parts = whole.split(" - ") if whole else []
        unit: Unit = "1/s" if whole == "s" else "share" if whole else "count"
        counters = tuple(each for each in (counter, *parts) if each != "s")
        yield Figure(name, unit, better, meaning, partial(_counted, counter, parts), counters)
    for name, histogram, meaning in _TIMES:
        for suffix, percent in PERCENTS.items():
            said, compute = f"{meaning}, p{percent:g}", partial(_percentile, histogram, percent)
            yield Figure(f"{name}_ms_{suffix}", "ms", "lower", said, compute, histogram=histogram)
    yield from _COSTS


def _counted(counter: str, whole: Sequence[str], sums: Sums, _criteria: CriteriaSettings) -> Array:
    """Return a counter over the first of the others less the rest of them, or over the seconds."""
    if not whole:
        return sums.counter(counter)
    base, *less = (sums.duration_s if each == "s" else sums.counter(each) for each in whole)
    return ratio(sums.counter(counter), base - sum(less))


def _percentile(histogram: str, percent: float, sums: Sums, _criteria: CriteriaSettings) -> Array:
    return sums.percentile_ms(histogram, percent)


FIGURES: Mapping[str, Figure] = {figure.name: figure for figure in _define()}
"""All figures by name."""


def figures(stats: RunStats, criteria: CriteriaSettings) -> dict[str, float]:
    """Return the figures of a run by name; nan for missing data."""
    sums = Sums.of_total(stats)
    return {name: float(figure.compute(sums, criteria)[0]) for name, figure in FIGURES.items()}


def rounded(value: float) -> float | None:
    """Return a figure for JSON, with six significant digits; None for nan, which JSON has not."""
    return None if math.isnan(value) else float(f"{value:.6g}")


def without_nan(found: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures for JSON."""
    return {name: rounded(value) for name, value in found.items()}


def reasons_invalid(stats: RunStats) -> tuple[str, ...]:
    """Return the reasons why a run is invalid; empty for a valid one."""
    reasons = []
    lag_ms = stats.total.percentile_ms("lag", 99)
    if lag_ms > MAX_LAG_MS:
        reasons.append(
            f"the generator was late: its p99 lag is {lag_ms:.1f} ms, more than {MAX_LAG_MS:g} ms. This machine was "
            "busy: close other programs, take fewer --sessions, or run the load tester on another machine"
        )
    missing = sorted(set(range(stats.num_workers)) - stats.workers)
    if missing:
        named = ", ".join(map(str, missing))
        reasons.append(f"of {stats.num_workers} workers, number {named} is missing")
    if not stats.total.counters["intended"]:
        reasons.append("no request was intended")
    return tuple(reasons)


def shown(name: str, value: float | None) -> str:
    """Return a figure's value as text."""
    unit = FIGURES[name].unit
    if value is None or math.isnan(value):
        return "-"
    if unit == "share":
        return f"{value:.1%}" if value == 0 or abs(value) >= 0.01 else f"{value:.3%}"  # noqa: PLR2004
    formats = {"USD": "${:.6f}", "count": "{:,.0f}"}
    return formats[unit].format(value) if unit in formats else shown_number(value)


def shown_number(value: float) -> str:
    """Return a time or a rate with about three digits."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"  # noqa: PLR2004
