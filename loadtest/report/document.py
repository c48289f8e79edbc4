"""The JSON document of a run, which `run` and `merge` write and all other commands read, and the gates of a run.

Its schema: schema.json. Gates are conditions on figures that decide a run's exit code, as in
`pause_ttft_ms_p95<200,error_rate<0.001`.
"""

import contextlib
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, computed_field

from loadtest import LoadTestError
from loadtest.report.figures import FIGURES, MAX_ERROR_RATE, figures, reasons_invalid, rounded, shown
from loadtest.stats import RunStats
from loadtest.traffic.sections import CriteriaSettings

SCHEMA = Path(__file__).with_name("schema.json")
"""A JSON Schema (2020-12) of the document."""

_OPERATORS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}
_CONDITION = re.compile(r"\s*(?P<figure>[A-Za-z0-9_]+)\s*(?P<operator><=|>=|==|<|>)\s*(?P<bound>[^\s<>=]+)\s*")


class GateError(LoadTestError, ValueError):
    """A gate can't be parsed; the message names it and the reason."""


class DocumentError(LoadTestError):
    """A file is not a document of a run; the message says why."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one figure with a bound."""

    figure: str
    operator: str
    bound: float

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.figure}{self.operator}{self.bound:.10g}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a condition. Raises GateError if the text is malformed, or names an unknown figure."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise GateError(f"a gate is FIGURE, one of {' '.join(_OPERATORS)}, and a number, got {text!r}")
        # A figure may be spelled as `ttft_p95_ms`.
        name, bound = re.sub(r"_(p[0-9]+)_ms$", r"_ms_\1", match["figure"]), math.nan
        if name not in FIGURES:
            near = get_close_matches(name, FIGURES, n=1, cutoff=0)
            raise GateError(f"there is no figure {match['figure']!r}; the nearest is {near[0]!r}")
        with contextlib.suppress(ValueError):
            bound = float(match["bound"])
        if not math.isfinite(bound):
            raise GateError(f"{name}: {match['bound']!r} is not a number")
        return cls(name, match["operator"], bound)


def parse_gates(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Parse texts of comma-separated conditions. Raises GateError."""
    return tuple(Condition.parse(each) for text in texts for each in text.split(","))


_Number = Annotated[
    float, BeforeValidator(lambda given: math.nan if given is None else given), PlainSerializer(rounded)
]
"""A figure; nan for missing data, which is null in JSON."""
_Gate = Annotated[
    Condition,
    BeforeValidator(lambda given: Condition.parse(given) if isinstance(given, str) else given),
    PlainSerializer(str),
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return self.model_dump(mode="json")


class Verdict(_Model):
    """A condition with the value that it was checked against."""

    gate: _Gate
    value: _Number
    """nan if the run has no such figure."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_met(self) -> bool:
        """Whether the condition is met; nan never meets one."""
        return bool(_OPERATORS[self.gate.operator](self.value, self.gate.bound))

    @property
    def said(self) -> str:
        """The value as text, or a note that it is missing."""
        return "has no value in this run" if math.isnan(self.value) else shown(self.gate.figure, self.value)


def judge(conditions: Sequence[Condition], found: Mapping[str, float]) -> tuple[Verdict, ...]:
    """Check a run's figures against conditions."""
    return tuple(Verdict(gate=each, value=found.get(each.figure, math.nan)) for each in conditions)


class TargetResult(_Model):
    """One target's run."""

    name: str
    uri: str
    kind: str
    invalid_because: tuple[str, ...] = ()
    gates: tuple[Verdict, ...] = ()
    """The result of each of the document's gates."""
    figures: dict[str, _Number]
    """Figures by name; nan for missing data."""
    stats: RunStats

    @computed_field  # type: ignore[prop-decorator]
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
        found, invalid = figures(stats, criteria), reasons_invalid(stats)
        verdicts = judge(gates, found)
        return cls(
            name=name, uri=uri, kind=kind, invalid_because=invalid, gates=verdicts, figures=found, stats=stats
        )  # fmt: skip


class RunDocument(_Model):
    """A run of one scenario against one or more targets."""

    schema_version: Literal[2] = 2
    tool: Literal["loadtest"] = "loadtest"
    version: str
    """Version of the tool."""
    started_at: str
    """ISO 8601 with an offset."""
    interrupted: bool = False
    num_workers: int = 1
    schedule_digest: str
    gates: tuple[_Gate, ...] = ()
    scenario: dict[str, Any]
    """The whole scenario as JSON."""
    targets: tuple[TargetResult, ...]

    @property
    def criteria(self) -> CriteriaSettings:
        """The criteria of the scenario."""
        return CriteriaSettings.model_validate(self.scenario.get("criteria", {}))

    @property
    def events(self) -> tuple[tuple[float, str], ...]:
        """Times and names of the scenario's events."""
        found = []
        for each in self.scenario.get("events", ()):
            kind, region, at_s = each["kind"].replace("_", " "), each.get("region"), float(each["at_s"])
            found.append((at_s, f"{kind}: {region}" if region else kind))
            if each["kind"] == "region_loss" and each["for_s"]:
                found.append((at_s + float(each["for_s"]), f"region back: {region}"))
        return tuple(sorted(found))

    @property
    def is_valid(self) -> bool:
        """Whether every target's run is valid."""
        return all(each.is_valid for each in self.targets)

    @property
    def is_passed(self) -> bool:
        """Whether every target meets every gate, and none has too many errors."""
        return all(verdict.is_met for each in self.targets for verdict in each.gates) and not self.with_too_many_errors

    @property
    def with_too_many_errors(self) -> tuple[TargetResult, ...]:
        """The targets of whose requests more than MAX_ERROR_RATE failed; none if a gate sets a limit itself."""
        if any(gate.figure == "error_rate" for gate in self.gates):
            return ()
        return tuple(each for each in self.targets if each.figures.get("error_rate", 0.0) > MAX_ERROR_RATE)

    def judged(self, gates: Sequence[Condition]) -> Self:
        """Return a copy that is checked against other gates."""
        targets = tuple(each.model_copy(update={"gates": judge(gates, each.figures)}) for each in self.targets)
        return self.model_copy(update={"gates": tuple(gates), "targets": targets})

    def target(self, name: str) -> TargetResult:
        """Return a target's run. Raises DocumentError if no target has the name."""
        for each in self.targets:
            if each.name == name:
                return each
        raise DocumentError(f"there is no target {name!r}, only {', '.join(each.name for each in self.targets)}")

    def write(self, path: Path) -> None:
        """Write the document to a file."""
        path.write_text(self.model_dump_json() + "\n", encoding="utf-8")


def read_document(path: Path) -> RunDocument:
    """Read a file written by `RunDocument.write`. Raises DocumentError, whose message begins with the path."""
    try:
        document = RunDocument.model_validate_json(path.read_text(encoding="utf-8"))
        _ = document.criteria
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}, got {each['input']!r:.80}".removeprefix(": ")
            for each in error.errors()
        ]
        raise DocumentError(f"{path}: it is not a document of a run: {'; '.join(faults[:3])}") from error
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path}: {error}") from error
    return document
