"""The JSON document of a run, which `run` and `merge` write and all other commands read, and the gates of a run.

Its schema: schema.json. Gates are conditions on figures that decide a run's exit code, as in
`pause_ttft_ms_p95<200,error_rate<0.001`.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from loadtest import LoadTestError
from loadtest.report.figures import FIGURES, MAX_ERROR_RATE, figures, reasons_invalid, shown, with_nan, without_nan
from loadtest.stats import RunStats
from loadtest.traffic.sections import CriteriaSettings

SCHEMA_VERSION = 2
TOOL = "loadtest"
SCHEMA = Path(__file__).with_name("schema.json")
"""A JSON Schema (2020-12) of the document."""

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*(?P<figure>[A-Za-z0-9_]+)\s*(?P<operator><=|>=|==|<|>)\s*(?P<bound>[^\s<>=]+)\s*")
_OTHER_ORDER = re.compile(r"(?P<what>.+)_(?P<percentile>p[0-9]+)_ms")


class GateError(LoadTestError):
    """A gate can't be parsed; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one figure with a bound."""

    figure: str
    operator: str
    bound: float

    def __str__(self) -> str:
        """Return the text that `parse_gate` reads."""
        return f"{self.figure}{self.operator}{self.bound:.10g}"

    def is_met(self, value: float) -> bool:
        """Return whether a value meets the condition; nan never does."""
        return not math.isnan(value) and _OPERATORS[self.operator](value, self.bound)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition with the value that it was checked against."""

    condition: Condition
    value: float
    """nan if the run has no such figure."""

    @property
    def is_met(self) -> bool:
        """Whether the condition is met."""
        return self.condition.is_met(self.value)

    @property
    def said(self) -> str:
        """The value as text, or a note that it is missing."""
        return "has no value in this run" if math.isnan(self.value) else shown(self.condition.figure, self.value)


def parse_gate(text: str) -> tuple[Condition, ...]:
    """Parse comma-separated conditions. Raises GateError if the text is malformed, or names an unknown figure."""
    return tuple(_parse_condition(each) for each in text.split(","))


def parse_gates(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Parse the conditions of several gates. Raises GateError."""
    return tuple(condition for text in texts for condition in parse_gate(text))


def judge(conditions: Sequence[Condition], found: Mapping[str, float]) -> tuple[Verdict, ...]:
    """Check a run's figures against conditions."""
    return tuple(Verdict(each, found.get(each.figure, math.nan)) for each in conditions)


def is_passed(conditions: Sequence[Condition], found: Mapping[str, float]) -> bool:
    """Return whether all conditions are met."""
    return all(verdict.is_met for verdict in judge(conditions, found))


def figure_named(name: str) -> str:
    """Return the name of a figure, which may be spelled as `ttft_p95_ms`. Raises GateError with the nearest name."""
    other = _OTHER_ORDER.fullmatch(name)
    known = f"{other['what']}_ms_{other['percentile']}" if other else name
    if known in FIGURES:
        return known
    near = get_close_matches(known, FIGURES, n=1, cutoff=0)
    raise GateError(f"there is no figure {name!r}; the nearest is {near[0]!r}")


def _parse_condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise GateError(f"a gate is FIGURE, one of {' '.join(_OPERATORS)}, and a number, got {text!r}")
    figure = figure_named(match["figure"])
    try:
        bound = float(match["bound"])
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise GateError(f"{figure}: {match['bound']!r} is not a number")
    return Condition(figure, match["operator"], bound)


class DocumentError(LoadTestError):
    """A file is not a document of a run; the message says why."""


@dataclass(frozen=True, slots=True)
class TargetResult:
    """One target's run."""

    name: str
    uri: str
    kind: str
    stats: RunStats
    figures: Mapping[str, float]
    """Figures by name; nan for missing data."""
    invalid_because: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """The result of each of the document's gates."""

    @property
    def is_valid(self) -> bool:
        """Whether the run is valid."""
        return not self.invalid_because

    @classmethod
    def of(
        cls,
        name: str,
        uri: str,
        kind: str,
        stats: RunStats,
        criteria: CriteriaSettings,
        gates: Sequence[Condition] = (),
    ) -> Self:
        """Compute the figures, check them against gates and decide whether the run is valid."""
        found = figures(stats, criteria)
        return cls(name, uri, kind, stats, found, reasons_invalid(stats), judge(gates, found))

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        verdicts = [
            {"gate": str(each.condition), "value": without_nan({"": each.value})[""], "is_met": each.is_met}
            for each in self.verdicts
        ]
        return {
            "name": self.name,
            "uri": self.uri,
            "kind": self.kind,
            "is_valid": self.is_valid,
            "invalid_because": list(self.invalid_because),
            "gates": verdicts,
            "figures": without_nan(self.figures),
            "stats": self.stats.as_json(),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], gates: Sequence[Condition]) -> Self:
        """Read the result of `as_json`. Raises ValueError, KeyError or TypeError for anything else."""
        values = with_nan(found["figures"])
        stats, reasons = RunStats.from_json(found["stats"]), tuple(found["invalid_because"])
        return cls(found["name"], found["uri"], found["kind"], stats, values, reasons, judge(gates, values))


@dataclass(frozen=True, slots=True)
class RunDocument:
    """A run of one scenario against one or more targets."""

    version: str
    """Version of the tool."""
    scenario: Mapping[str, Any]
    """The whole scenario as JSON."""
    schedule_digest: str
    started_at: str
    """ISO 8601 with an offset."""
    targets: tuple[TargetResult, ...]
    interrupted: bool = False
    num_workers: int = 1
    gates: tuple[Condition, ...] = field(default=())

    @property
    def criteria(self) -> CriteriaSettings:
        """The criteria of the scenario."""
        return CriteriaSettings.model_validate(self.scenario.get("criteria", {}))

    @property
    def events(self) -> tuple[tuple[float, str], ...]:
        """Times and names of the scenario's events."""
        found = [(float(each["at_s"]), _event_label(each)) for each in self.scenario.get("events", ())]
        returns = [each for each in self.scenario.get("events", ()) if each["kind"] == "region_loss" and each["for_s"]]
        found += [(float(each["at_s"]) + float(each["for_s"]), f"region back: {each['region']}") for each in returns]
        return tuple(sorted(found))

    @property
    def is_valid(self) -> bool:
        """Whether every target's run is valid."""
        return all(each.is_valid for each in self.targets)

    @property
    def is_passed(self) -> bool:
        """Whether every target meets every gate, and none has too many errors."""
        is_met = all(verdict.is_met for each in self.targets for verdict in each.verdicts)
        return is_met and not self.with_too_many_errors

    @property
    def with_too_many_errors(self) -> tuple[TargetResult, ...]:
        """The targets of whose requests more than MAX_ERROR_RATE failed; none if a gate sets a limit itself."""
        if any(gate.figure == "error_rate" for gate in self.gates):
            return ()
        return tuple(each for each in self.targets if each.figures.get("error_rate", 0.0) > MAX_ERROR_RATE)

    def target(self, name: str) -> TargetResult:
        """Return a target's run. Raises DocumentError if no target has the name."""
        for each in self.targets:
            if each.name == name:
                return each
        raise DocumentError(f"there is no target {name!r}, only {', '.join(each.name for each in self.targets)}")

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": TOOL,
            "version": self.version,
            "started_at": self.started_at,
            "interrupted": self.interrupted,
            "num_workers": self.num_workers,
            "schedule_digest": self.schedule_digest,
            "gates": [str(each) for each in self.gates],
            "scenario": dict(self.scenario),
            "targets": [each.as_json() for each in self.targets],
        }

    def write(self, path: Path) -> None:
        """Write the document to a file."""
        path.write_text(json.dumps(self.as_json(), allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read the output of `as_json`. Raises DocumentError if it is something else, or of another version."""
        _check_version(found)
        try:
            gates = tuple(each for text in found["gates"] for each in parse_gate(text))
            document = cls(
                version=found["version"],
                scenario=found["scenario"],
                schedule_digest=found["schedule_digest"],
                started_at=found["started_at"],
                targets=tuple(TargetResult.from_json(each, gates) for each in found["targets"]),
                interrupted=found["interrupted"],
                num_workers=found["num_workers"],
                gates=gates,
            )
            CriteriaSettings.model_validate(document.scenario.get("criteria", {}))
        except KeyError as error:
            raise DocumentError(f"it lacks {error}") from error
        except (GateError, ValidationError, ValueError, TypeError, AttributeError) as error:
            raise DocumentError(f"it is not a document of a run: {error}") from error
        return document


def read_document(path: Path) -> RunDocument:
    """Read a file written by `RunDocument.write`. Raises DocumentError, whose message begins with the path."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise DocumentError("it is not a JSON object")
        return RunDocument.from_json(found)
    except (OSError, ValueError, DocumentError) as error:
        raise DocumentError(f"{path}: {error}") from error


def named_alike(first: RunDocument, second: RunDocument) -> Iterable[tuple[TargetResult, TargetResult]]:
    """Yield the targets that both documents have, by name. If each has only one, pair these two."""
    if len(first.targets) == len(second.targets) == 1:
        yield first.targets[0], second.targets[0]
        return
    others = {each.name: each for each in second.targets}
    for each in first.targets:
        if each.name in others:
            yield each, others[each.name]


def _check_version(found: Mapping[str, Any]) -> None:
    if found.get("tool") != TOOL:
        raise DocumentError(f"tool is {found.get('tool')!r}, not {TOOL!r}")
    if found.get("schema_version") != SCHEMA_VERSION:
        raise DocumentError(f"schema_version is {found.get('schema_version')!r}; this reads {SCHEMA_VERSION}")


def _event_label(event: Mapping[str, Any]) -> str:
    kind = str(event["kind"]).replace("_", " ")
    return f"{kind}: {event['region']}" if event.get("region") else kind
