"""Statistics of a run that can be added up: counters and histograms of the whole run and of each time slice.

Each worker, on one machine or on many, keeps its own statistics; those of the run are their sum. Their size does not
depend on the number of requests. Latencies are HDR histograms of microseconds, with three significant digits for the
run and two for a slice.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram
from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter

MAX_SECONDS = 600.0
"""Longer times are recorded as this."""

_MICROSECONDS = 1_000_000
_SLICE_UNIT_US = 64


class Histogram:
    """An HDR histogram of times. http://hdrhistogram.org"""

    def __init__(self, digits: int = 3) -> None:
        """Keep `digits` significant digits. With fewer than three, times are also rounded to 64 microseconds."""
        unit_us = 1 if digits >= 3 else _SLICE_UNIT_US  # noqa: PLR2004
        self._hdr = HdrHistogram(unit_us, int(MAX_SECONDS * _MICROSECONDS), digits)

    def __len__(self) -> int:
        """Return the number of recorded times."""
        return int(self._hdr.get_total_count())

    def record(self, seconds: float) -> None:
        """Record a time; a negative one is recorded as 0."""
        self._hdr.record_value(int(min(MAX_SECONDS, max(0.0, seconds)) * _MICROSECONDS))

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile in milliseconds; nan if the histogram is empty."""
        return float(self._hdr.get_value_at_percentile(percent)) / 1000 if len(self) else float("nan")

    def add(self, other: "Histogram") -> None:
        """Add another one of the same precision."""
        self._hdr.add(other._hdr)

    def arrays(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the recorded times in milliseconds, rising, and the count of each."""
        counts = np.array(self._hdr.counts, dtype=np.int64)
        places = np.flatnonzero(counts)
        found = [self._hdr.get_highest_equivalent_value(self._hdr.get_value_from_index(int(at))) for at in places]
        return np.array(found, dtype=np.float64) / 1000, counts[places]

    def encode(self) -> str:
        """Return HDR's compressed form (base64, log format V2), which HDR tools of all languages read."""
        return str(self._hdr.encode().decode("ascii"))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Decode the result of `encode`. Raises ValueError if the text is not an HDR histogram."""
        try:
            found = HdrHistogram.decode(text)
        except Exception as error:
            raise ValueError(f"not an HDR histogram: {text[:40]!r}") from error
        histogram = cls(int(found.significant_figures))
        histogram._hdr.add(found)
        return histogram


_Encoded = Annotated[Histogram, PlainSerializer(Histogram.encode), PlainValidator(Histogram.decode)]


@dataclass(slots=True)
class Tally:
    """Named counters and histograms. A "/" in a name separates dimensions, as in `ttft/outcome/answered`."""

    digits: Annotated[int, Field(exclude=True)] = 3
    counters: Counter[str] = field(default_factory=Counter)
    """Totals by name."""
    histograms: dict[str, _Encoded] = field(default_factory=dict)

    def record(self, name: str, seconds: float) -> None:
        """Record a time in a histogram."""
        histogram = self.histograms.get(name)
        if histogram is None:
            histogram = self.histograms[name] = Histogram(self.digits)
        histogram.record(seconds)

    def percentile_ms(self, name: str, percent: float) -> float:
        """Return a percentile of a histogram in milliseconds; nan if nothing was recorded."""
        return self.histograms[name].percentile_ms(percent) if name in self.histograms else float("nan")

    def add(self, other: "Tally") -> None:
        """Add another one of the same precision."""
        for name, amount in other.counters.items():
            self.counters[name] += amount
        for name, histogram in other.histograms.items():
            self.histograms.setdefault(name, Histogram(self.digits)).add(histogram)


@dataclass(slots=True)
class RunStats:
    """Statistics of one target, recorded by one worker or summed over several."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    target: str
    """Name of the target."""
    duration_s: float
    """Requests are intended before this; less than planned if the run was interrupted."""
    slice_s: float
    total: Tally = field(default_factory=Tally)
    slices: list[Tally] = field(default_factory=list)
    """Tallies by intended time; the last slice may be shorter."""
    workers: frozenset[int] = frozenset()
    """Numbers of the workers whose statistics are included."""
    num_workers: int = 1
    """Number of workers that took part in the run."""

    def __post_init__(self) -> None:
        for each in self.slices:
            each.digits = 2

    def slice_at(self, at_s: float) -> Tally:
        """Return the slice that contains a time of the run."""
        place = max(0, int(at_s / self.slice_s))
        while len(self.slices) <= place:
            self.slices.append(Tally(digits=2))
        return self.slices[place]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        found: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "RunStats":
        """Read the result of `as_json`. Raises ValueError for anything else."""
        return _ADAPTER.validate_python(found)


_ADAPTER = TypeAdapter(RunStats)


def merge(runs: Iterable[RunStats]) -> RunStats:
    """Return the sum of workers' statistics. Raises ValueError for none, those of several runs, and a worker twice."""
    whole: RunStats | None = None
    for stats in runs:
        if whole is None:
            whole = RunStats(stats.target, stats.duration_s, stats.slice_s, num_workers=stats.num_workers)
        named = (stats.target, stats.slice_s, stats.num_workers)
        if named != (whole.target, whole.slice_s, whole.num_workers):
            msg = f"statistics of different runs: {named} and {(whole.target, whole.slice_s, whole.num_workers)}"
            raise ValueError(msg)
        if both := whole.workers & stats.workers:
            raise ValueError(f"worker {min(both)} is included twice for {stats.target}")
        whole.duration_s = max(whole.duration_s, stats.duration_s)
        whole.workers |= stats.workers
        whole.total.add(stats.total)
        for place, each in enumerate(stats.slices):
            whole.slice_at(place * stats.slice_s + stats.slice_s / 2).add(each)
    if whole is None:
        raise ValueError("there are no statistics to merge")
    return whole
