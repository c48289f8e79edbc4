"""Reads what one server can do from a load test's document.

It reads JSON of `loadtest run --out` (schema_version 2, docs/loadtest.md) and of `loadtest capacity --json`. The module
that writes it is not imported, because it needs numpy, which `completion-server plan` does without.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadtest.planning.demand import Demand

_MAX_BYTES = 256 * 1024 * 1024

Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ReportError(ValueError):
    """A file is no report to plan from; the message says why."""


class _Read(BaseModel):
    """Part of a document. Keys that the plan has no use for are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Figures(_Read):
    offered_per_s: Rate
    seen_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    shed_share: Share
    error_rate: Share
    unanswered_share: Share
    pause_ttft_ms_p95: Rate
    sessions: Annotated[float, Field(ge=1)]

    @property
    def unserved_share(self) -> float:
        """Requests that the server turned away, failed or did not end."""
        return self.shed_share + self.error_rate + self.unanswered_share


class _Target(_Read):
    name: str
    is_valid: bool
    invalid_because: tuple[str, ...] = ()
    figures: dict[str, float | None]


class _Run(_Read):
    tool: Literal["loadtest"]
    schema_version: Literal[2]
    interrupted: bool
    targets: Annotated[tuple[_Target, ...], Field(min_length=1)]


class _Trial(_Read):
    sessions: int
    is_passed: bool
    figures: dict[str, float | None]


class _Search(_Read):
    target: str
    sessions: int
    is_generator_bound: bool
    is_interrupted: bool
    trials: tuple[_Trial, ...]


@dataclass(frozen=True, slots=True)
class LatencyGoal:
    """The share of a run's answers that must come within a time."""

    within_ms: float
    in_time: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one server did in time."""

    requests_per_s: float
    """Requests offered to one server, prefetches and cached ones included."""
    shown_share: float | None
    """Completions seen, as a share of the requests; None if that was not measured."""
    source: str
    requests_per_session_s: float | None = None
    """Requests of one session of the test, for comparison; None if that was not measured."""

    def replacing(self, demand: Demand) -> Demand:
        """Return a demand with the measured share of completions shown."""
        return demand if self.shown_share is None else replace(demand, shown_share=self.shown_share)


def read_measured(path: Path, goal: LatencyGoal, *, servers: int = 1, target: str | None = None) -> Measured:
    """Return what each of `servers` did in a run, or at the largest number of sessions that a search found.

    Raises:
        ReportError: the file is something else, the run does not count, or its answers were not in time.

    """
    document = _read(path)
    if "trials" in document:
        name, figures = _of_search(document)
    else:
        name, figures = _of_run(document, target)
    _check_in_time(name, figures, goal)
    if not figures.seen_per_s:
        raise ReportError(f"is of a run in which nobody saw a completion of {name}")
    return Measured(
        requests_per_s=figures.offered_per_s / servers,
        shown_share=figures.seen_per_s / figures.offered_per_s,
        source=f"measured: {name} in {path.name}",
        requests_per_session_s=figures.offered_per_s / figures.sessions,
    )


def _read(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_BYTES:
        raise ReportError(f"must be at most {_MAX_BYTES >> 20} MiB, got {path.stat().st_size >> 20} MiB")
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ReportError(f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ReportError("must be a JSON object, as `loadtest run --out` and `loadtest capacity --json` write")
    return found


def _of_run(document: Mapping[str, Any], target: str | None) -> tuple[str, _Figures]:
    try:
        run = _Run.model_validate(document)
    except ValidationError as error:
        raise ReportError(f"is no document of `loadtest run --out`: {_first(error)}") from error
    if run.interrupted:
        raise ReportError("is of a run that was interrupted")
    names = [each.name for each in run.targets]
    if target is None and len(names) > 1:
        raise ReportError(f"has several targets; choose one with --target: {', '.join(names)}")
    if target is not None and target not in names:
        raise ReportError(f"has no target {target!r}, only {', '.join(names)}")
    found = next(each for each in run.targets if target in {None, each.name})
    if not found.is_valid:
        raise ReportError(f"is of an invalid run: {'; '.join(found.invalid_because)}")
    return found.name, _figures(found.figures)


def _of_search(document: Mapping[str, Any]) -> tuple[str, _Figures]:
    try:
        search = _Search.model_validate(document)
    except ValidationError as error:
        raise ReportError(f"is no output of `loadtest capacity --json`: {_first(error)}") from error
    if search.is_interrupted:
        raise ReportError("is of a search that was interrupted")
    if search.is_generator_bound:
        raise ReportError("is of a search whose load generator was the limit, not the server")
    passed = [each.figures for each in search.trials if each.is_passed and each.sessions == search.sessions]
    if not passed:
        raise ReportError("is of a search in which not even one session passed its gate")
    every = [_figures(each) for each in passed]
    means = {name: fmean(getattr(each, name) for each in every) for name in _Figures.model_fields}
    return search.target, _Figures.model_validate(means)


def _figures(found: Mapping[str, float | None]) -> _Figures:
    try:
        return _Figures.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:
        raise ReportError(f"lacks a figure, or has a wrong one: {_first(error)}") from error


def _check_in_time(name: str, figures: _Figures, goal: LatencyGoal) -> None:
    """Check that a share `in_time` was in time: the 95th percentile of the answers, and requests without an answer."""
    if figures.unserved_share > 1 - goal.in_time:
        got = f"{figures.unserved_share:.1%} of the requests of {name} were shed, failed or were not answered"
        raise ReportError(f"is of too high a load: {got}, at most {1 - goal.in_time:.1%} may be (--in-time)")
    if figures.pause_ttft_ms_p95 > goal.within_ms:
        got = f"the first text of {name} came after {figures.pause_ttft_ms_p95:.0f} ms (p95 of pauses)"
        raise ReportError(f"is of too high a load: {got}, at most {goal.within_ms:g} ms (--within-ms)")


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg'].lower()}"
