"""Sweep: runs every target at each of several session counts; its result as JSON, table and page.

The caller supplies the runs.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.processes.meter import ProcessMeter, ProcessUsage
from loadtest.report.canvas import curve_picture
from loadtest.report.figures import shown, shown_number, without_nan
from loadtest.report.page import Picture, Section, render
from loadtest.report.tables import Table
from loadtest.search.capacity import Trial

RunTarget = Callable[[str, int], Trial]
"""Runs a target, given by name, with a number of sessions."""
SCHEMA_VERSION = 1

_MIB = 1024 * 1024
_COLUMNS: Mapping[str, str] = {
    "offered_per_s": "asked/s",
    "seen_per_s": "seen/s",
    "pause_in_time_share": "pauses in time",
    "pause_ttft_ms_p95": "pause p95, ms",
    "error_rate": "errors",
}
_MIN_FOR_LINE = 2


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
            "schema_version": SCHEMA_VERSION,
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

    def series(self, value: Callable[[Point], float]) -> dict[str, list[tuple[float, float]]]:
        """Return (sessions, value) pairs by target, rising, without nan."""
        found: dict[str, list[tuple[float, float]]] = {}
        for point in sorted(self.points, key=lambda each: each.sessions):
            if not math.isnan(value(point)):
                found.setdefault(point.target, []).append((point.sessions, value(point)))
        return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of y over x; nan for fewer than two xs."""
    if len({x for x, _y in points}) < _MIN_FOR_LINE:
        return math.nan
    return float(np.polyfit([x for x, _y in points], [y for _x, y in points], 1)[0])


def table(sweep: Sweep) -> Table:
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
    memory = sweep.series(lambda each: math.nan if each.usage is None else each.usage.peak_rss_bytes / _MIB)
    cpu = sweep.series(lambda each: math.nan if each.usage is None else each.usage.cpu_cores)
    latency = sweep.series(lambda each: each.figures.get("pause_ttft_ms_p95", math.nan))
    pictures = [
        _picture("Completions seen", sweep.series(lambda each: each.figures.get("seen_per_s", math.nan)), "seen/s"),
        _picture("TTFT of pauses, p95", latency, "ms", bound=(budget_ms, f"budget {budget_ms:g} ms")),
        _picture("CPU", cpu, "cores", note=_growth(cpu, 1000, "cores per 1,000 sessions")),
        _picture("Memory", memory, "MiB", note=_growth(memory, 1024, "KiB per session")),
    ]
    troubles = sweep.troubles()
    if sweep.interrupted:
        troubles.append("the sweep was interrupted; the figures are of what there is")
    name = sweep.scenario.get("name", "?")
    facts = {"scenario": str(name), "started": sweep.started_at, "version": sweep.version}
    section = Section("", pictures=pictures, tables=[table(sweep)])
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


def sweep(
    counts: Sequence[int],
    targets: Sequence[str],
    run_target: RunTarget,
    meters: Mapping[str, ProcessMeter] | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> tuple[tuple[Point, ...], bool]:
    """Run every target at every count, and measure the processes of targets that have a meter.

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
