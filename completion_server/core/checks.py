"""Checks of settings. Every message names the key, the limit and the value that was given."""

from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Between:
    """The inclusive range of a numeric setting, as in `max_slots: Annotated[int, Between(1, 100)]`.

    `require_bounds` enforces it, and the table in docs/configuration.md shows it. NaN lies in no range.
    """

    low: float
    high: float

    def violation(self, value: float) -> str:
        """Return the limit that `value` breaks, "" if it breaks none."""
        if not value >= self.low:
            return f"must be at least {self.low}"
        return "" if value <= self.high else f"must be at most {self.high}"

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True, slots=True)
class Above:
    """The range of a numeric setting that must exceed `low` and may reach `high`."""

    low: float
    high: float

    def violation(self, value: float) -> str:
        """Return the limit that `value` breaks, "" if it breaks none."""
        if not value > self.low:
            return f"must be above {self.low}"
        return "" if value <= self.high else f"must be at most {self.high}"

    def __str__(self) -> str:
        return f"above {self.low:,}, up to {self.high:,}"


def bounds_of(settings: type) -> dict[str, Between | Above]:
    """Return the declared range of each numeric field of a settings class."""
    found = {}
    for name, hint in get_type_hints(settings, include_extras=True).items():
        metadata: tuple[Any, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        for item in metadata:
            if isinstance(item, Between | Above):
                found[name] = item
    return found


def require_bounds(settings: object) -> None:
    """Check each field of a settings dataclass against the range that its annotation declares; None always passes.

    Raises:
        ValueError: one line for each field that is out of its range.

    """
    faults = []
    for name, bounds in bounds_of(type(settings)).items():
        value = getattr(settings, name)
        if value is not None and (violation := bounds.violation(value)):
            faults.append(f"{name}: {violation}, got {value}")
    if faults:
        raise ValueError("\n".join(faults))
