"""Repeated runs of a scenario: the search for a capacity, and sweeps. The caller supplies the runs.

**Capacity** is the highest session count at which a gate holds. Counts grow by a factor, 2 by default, until one fails;
if already the first fails, they shrink by it. The gap between the highest count that passed and the lowest that failed
is then halved until it is small. The majority of its runs decides a count, so that one unlucky run moves no bound.

**A sweep** runs every target at each of several session counts. Its result is JSON, a table and a page.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loadtest import LoadTestError
from loadtest.processes.meter import ProcessMeter, ProcessUsage
from loadtest.report.canvas import curve_picture
from loadtest.report.figures import shown, shown_number, without_nan
from loadtest.report.page import Picture, Section, render
from loadtest.report.tables import Table

SWEEP_SCHEMA_VERSION = 1

_MIB = 1024 * 1024
_COLUMNS: Mapping[str, str] = {
    "offered_per_s": "asked/s",
    "seen_per_s": "seen/s",
    "pause_in_time_share": "pauses in time",
    "pause_ttft_ms_p95": "pause p95, ms",
    "error_rate": "errors",
}
_MIN_FOR_LINE = 2


class SearchError(LoadTestError):
    """A search can't start; the message says why."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The range and the precision of a search."""

    from_sessions: int
    to_sessions: int
    tolerance: float = 0.05
    """Largest final gap between the highest passing and the lowest failing count, as a share of the former."""
    repeats: int = 3
    """Runs of each count. A count is decided as soon as a majority agrees."""
    growth: float = 2.0
    """Factor between counts while no bound is known on one side. A small one suits a start near the answer."""

    def __post_init__(self) -> None:
        checks = (
            (self.from_sessions >= 1, f"from must be at least 1, got {self.from_sessions}"),
            (
                self.from_sessions <= self.to_sessions,
                f"to must be at least from, {self.from_sessions}, got {self.to_sessions}",
            ),
            (0 < self.tolerance < 1, f"tolerance must be above 0 and below 1, got {self.tolerance:g}"),
            (self.growth > 1, f"growth must be above 1, got {self.growth:g}"),
            (self.repeats >= 1 and self.repeats % 2 == 1, f"repeats must be odd and at least 1, got {self.repeats}"),
        )
        for is_good, message in checks:
            if not is_good:
                raise SearchError(message)


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
        self._next: int | None = settings.from_sessions

    @property
    def next_sessions(self) -> int | None:
        """The count to run next; None when the search is over."""
        return self._next

    def num_runs(self, sessions: int) -> int:
        """Return the number of runs of a count."""
        return sum(each.sessions == sessions for each in self._trials)

    def record(self, trial: Trial) -> None:
        """Record a run of `next_sessions`. Raises ValueError if the run has another count."""
        if trial.sessions != self._next:
            raise ValueError(f"a run of {trial.sessions} sessions, expected {self._next}")
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
        """Return the result so far, which is final when the search is over."""
        failed = [each for each in self._trials if each.sessions == self._fails and not each.is_passed]
        is_bound = bool(failed) and sum(bool(each.invalid_because) for each in failed) * 2 > len(failed)
        return Capacity(self._passes, self._fails, is_bound, tuple(self._trials))

    def _verdict(self, sessions: int) -> bool | None:
        """Return whether most runs of a count passed; None while no majority is reached."""
        runs = [each.is_passed for each in self._trials if each.sessions == sessions]
        needed = self._settings.repeats // 2 + 1
        if sum(runs) >= needed:
            return True
        return False if len(runs) - sum(runs) >= needed else None

    def _choose(self) -> int | None:
        growth = self._settings.growth
        if self._fails is None:
            larger = min(max(self._passes + 1, int(self._passes * growth)), self._settings.to_sessions)
            return larger if larger > self._passes else None
        if self._passes == 0 and self._fails > 1:
            return max(1, min(self._fails - 1, int(self._fails / growth)))
        gap = self._fails - self._passes
        if gap <= max(1, self._settings.tolerance * self._passes):
            return None
        return self._passes + gap // 2


def find_capacity(
    settings: SearchSettings, run_once: Callable[[int, int], Trial], on_trial: Callable[[Trial], None] | None = None
) -> Capacity:
    """Search for the highest count that passes. An interrupted run ends the search and does not count.

    `run_once` runs a session count once; its second argument is the number of earlier runs of that count.
    """
    search = Bisection(settings)
    while (sessions := search.next_sessions) is not None:
        trial = run_once(sessions, search.num_runs(sessions))
        if trial.is_interrupted:
            return replace(search.capacity(), is_interrupted=True)
        search.record(trial)
        if on_trial is not None:
            on_trial(trial)
    return search.capacity()


@dataclass(frozen=True, slots=True)
class Point:
    """One target at one session count."""

    target: str
    sessions: int
    figures: Mapping[str, float]
    invalid_because: tuple[str, ...] = ()
    usage: ProcessUsage | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "target": self.target,
            "sessions": self.sessions,
            "is_valid": not self.invalid_because,
            "invalid_because": list(self.invalid_because),
            "cpu_cores": None if self.usage is None else round(self.usage.cpu_cores, 4),
            "peak_rss_bytes": None if self.usage is None else self.usage.peak_rss_bytes,
            "figures": without_nan(self.figures),
        }


@dataclass(frozen=True, slots=True)
class Sweep:
    """All points, in the order in which they were run."""

    version: str
    scenario: Mapping[str, Any]
    started_at: str
    points: tuple[Point, ...] = field(default=())
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "schema_version": SWEEP_SCHEMA_VERSION,
            "tool": "loadtest sweep",
            "version": self.version,
            "started_at": self.started_at,
            "interrupted": self.interrupted,
            "scenario": dict(self.scenario),
            "points": [each.as_json() for each in self.points],
        }

    def troubles(self) -> list[str]:
        """Return the reasons of invalid runs."""
        return [
            f"{each.target} at {each.sessions:,} sessions: INVALID, {reason}"
            for each in self.points
            for reason in each.invalid_because
        ]

    def series(self, value: Callable[[Point], float | None]) -> dict[str, list[tuple[float, float]]]:
        """Return (sessions, value) pairs by target, rising, without nan and None."""
        found: dict[str, list[tuple[float, float]]] = {}
        for point in sorted(self.points, key=lambda each: each.sessions):
            number = value(point)
            if number is not None and not math.isnan(number):
                found.setdefault(point.target, []).append((point.sessions, number))
        return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of y over x; nan for fewer than two xs."""
    if len({x for x, _y in points}) < _MIN_FOR_LINE:
        return math.nan
    return float(np.polyfit([x for x, _y in points], [y for _x, y in points], 1)[0])


def sweep_table(sweep: Sweep) -> Table:
    """Return a row for each point."""
    rows = []
    for point in sorted(sweep.points, key=lambda each: (each.sessions, each.target)):
        usage = point.usage
        cells = [shown(name, point.figures.get(name)) for name in _COLUMNS]
        used = ["-", "-"] if usage is None else [f"{usage.cpu_cores:.2f}", shown_number(usage.peak_rss_bytes / _MIB)]
        rows.append(
            (point.target, f"{point.sessions:,}", *cells, *used, "invalid" if point.invalid_because else "valid")
        )
    headings = ("target", "sessions", *_COLUMNS.values(), "cores", "MiB", "run")
    return Table("Figures against sessions", headings, tuple(rows))


def render_sweep(sweep: Sweep) -> str:
    """Return the page of a sweep."""
    criteria = sweep.scenario.get("criteria", {})
    budget_ms = float(criteria.get("slo_ttft_ms", 0))
    memory = sweep.series(lambda each: None if each.usage is None else each.usage.peak_rss_bytes / _MIB)
    cpu = sweep.series(lambda each: None if each.usage is None else each.usage.cpu_cores)
    latency = sweep.series(lambda each: each.figures.get("pause_ttft_ms_p95"))
    pictures = [
        _picture("Completions seen", sweep.series(lambda each: each.figures.get("seen_per_s")), "seen/s"),
        _picture("TTFT of pauses, p95", latency, "ms", bound=(budget_ms, f"budget {budget_ms:g} ms")),
        _picture("CPU", cpu, "cores", note=_growth(cpu, 1000, "cores per 1,000 sessions")),
        _picture("Memory", memory, "MiB", note=_growth(memory, 1024, "KiB per session")),
    ]
    troubles = sweep.troubles()
    if sweep.interrupted:
        troubles.append("the sweep was interrupted; the figures are of what there is")
    name = sweep.scenario.get("name", "?")
    facts = {"scenario": str(name), "started": sweep.started_at, "version": sweep.version}
    section = Section("", pictures=pictures, tables=[sweep_table(sweep)])
    return render(f"Sweep: {name}", str(sweep.scenario.get("description", "")), facts, troubles, [section])


def _picture(
    caption: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    y_label: str,
    *,
    bound: tuple[float, str] | None = None,
    note: str = "",
) -> Picture:
    axes = curve_picture(series, "sessions", y_label, bound=bound) if series else None
    return Picture(caption, axes, note)


def _growth(series: Mapping[str, Sequence[tuple[float, float]]], times: float, unit: str) -> str:
    """Return how much more a session costs, by the line that fits each series best."""
    slopes = {name: slope(points) * times for name, points in series.items()}
    said = [f"{name}: {shown_number(each)} {unit}" for name, each in slopes.items() if not math.isnan(each)]
    return ", ".join(said)


def sweep_order(counts: Sequence[int], targets: Sequence[str]) -> list[tuple[int, str]]:
    """Return the runs of a sweep: all targets at each count, in an order that rotates from count to count."""
    if not targets:
        return []
    turns = [(*targets[place % len(targets) :], *targets[: place % len(targets)]) for place in range(len(counts))]
    return [(sessions, target) for sessions, turn in zip(counts, turns, strict=True) for target in turn]


def run_sweep(
    counts: Sequence[int],
    targets: Sequence[str],
    run_target: Callable[[str, int], Trial],
    meters: Mapping[str, ProcessMeter] | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> tuple[tuple[Point, ...], bool]:
    """Run every target, given by name, at every count, and measure the processes of targets that have a meter.

    Return the points, and whether an interrupted run ended the sweep; an interrupted run has no point.
    """
    points: list[Point] = []
    for sessions, target in sweep_order(counts, targets):
        meter = (meters or {}).get(target)
        with meter or contextlib.nullcontext():
            trial = run_target(target, sessions)
        if trial.is_interrupted:
            return tuple(points), True
        usage = None if meter is None else meter.usage
        points.append(Point(target, sessions, trial.figures, trial.invalid_because, usage))
        if on_point is not None:
            on_point(points[-1])
    return tuple(points), False
