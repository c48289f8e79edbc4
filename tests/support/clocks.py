"""Clocks for tests."""

from dataclasses import dataclass


@dataclass
class ManualClock:
    """A clock that a test sets."""

    at: float = 0.0

    def now(self) -> float:
        return self.at
