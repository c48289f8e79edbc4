"""Sweep: runs every target at each of several session counts. The caller supplies the runs."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from loadtest.processes.meter import ProcessMeter
from loadtest.report.sweep import Point
from loadtest.search.capacity import Trial

RunTarget = Callable[[str, int], Trial]
"""Runs a target, given by name, with a number of sessions."""


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
