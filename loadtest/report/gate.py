"""Gates: conditions on figures that decide a run's exit code, as in `pause_ttft_ms_p95<200,error_rate<0.001`."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from loadtest.report.figures import FIGURES, shown

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*(?P<figure>[A-Za-z0-9_]+)\s*(?P<operator><=|>=|==|<|>)\s*(?P<bound>[^\s<>=]+)\s*")
_OTHER_ORDER = re.compile(r"(?P<what>.+)_(?P<percentile>p[0-9]+)_ms")


class GateError(ValueError):
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
