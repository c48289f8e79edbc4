"""Sums of drafted and accepted tokens over the last minutes, by position. Pure; the clock is injected."""

from collections import deque
from dataclasses import dataclass, field

from completion_server.core.clock import Clock
from completion_server.engine.interface import EngineStep

WINDOW_S = 300.0
"""Length of the window."""

_SLICE_S = 1.0
"""Steps are summed up over slices of this length."""


@dataclass(slots=True)
class _Slice:
    """The steps of one second."""

    begins_at: float
    num_tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """Sums over a window that ends now."""

    seconds: float
    """Length of the window; shorter in the first minutes."""
    num_tokens: int
    """Tokens generated, accepted ones among them."""
    drafted: tuple[int, ...]
    """Draft tokens verified, by position."""
    accepted: tuple[int, ...]
    """Draft tokens accepted, by position."""

    @property
    def num_drafted(self) -> int:
        """Draft tokens verified."""
        return sum(self.drafted)

    @property
    def num_accepted(self) -> int:
        """Draft tokens accepted."""
        return sum(self.accepted)

    @property
    def num_wasted(self) -> int:
        """Draft tokens verified but not accepted."""
        return self.num_drafted - self.num_accepted

    @property
    def acceptance(self) -> float | None:
        """The share of the draft tokens that were accepted; None without draft tokens."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """For each position, the share of its draft tokens that were accepted, with all before them."""
        return tuple(a / d if d else 0.0 for a, d in zip(self.accepted, self.drafted, strict=True))

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens that a generation got from a step that verified a draft: the accepted ones and the target's own.

        None if no draft was verified.
        """
        return 1 + self.num_accepted / self.drafted[0] if self.num_drafted else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated a second, idle times included."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


class FiguresWindow:
    """Sums steps up over a sliding window."""

    def __init__(self, clock: Clock, window_s: float = WINDOW_S) -> None:
        """Begin now."""
        self._clock = clock
        self._window_s = window_s
        self._began_at = clock.now()
        self._slices: deque[_Slice] = deque()

    def add(self, step: EngineStep) -> None:
        """Take in a step that ended now."""
        now = self._clock.now()
        if not self._slices or now - self._slices[-1].begins_at >= _SLICE_S:
            self._forget(now)
            self._slices.append(_Slice(now))
        current = self._slices[-1]
        current.num_tokens += step.num_tokens
        _add(current.drafted, step.drafted)
        _add(current.accepted, step.accepted)

    def read(self) -> SpeculationFigures:
        """Return the current sums."""
        now = self._clock.now()
        self._forget(now)
        drafted: list[int] = []
        accepted: list[int] = []
        for each in self._slices:
            _add(drafted, each.drafted)
            _add(accepted, each.accepted)
        return SpeculationFigures(
            seconds=min(self._window_s, now - self._began_at),
            num_tokens=sum(each.num_tokens for each in self._slices),
            drafted=tuple(drafted),
            accepted=tuple(accepted),
        )

    def _forget(self, now: float) -> None:
        while self._slices and self._slices[0].begins_at <= now - self._window_s:
            self._slices.popleft()


def _add(sums: list[int], counts: "tuple[int, ...] | list[int]") -> None:
    """Add counts by position."""
    sums += [0] * (len(counts) - len(sums))
    for position, count in enumerate(counts):
        sums[position] += count
