"""Sums of drafted and accepted tokens by position: over the last minutes, and since the start by K. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from completion_server.core.clock import Clock
from completion_server.engine.interface import EngineStep

WINDOW_S = 300.0
"""Length of the window."""

_SLICE_S = 1.0
"""Steps are summed up over slices of this length."""


@dataclass(slots=True)
class DraftSums:
    """Sums over some steps."""

    num_steps: int = 0
    num_tokens: int = 0
    """Tokens generated, accepted ones among them."""
    drafted: list[int] = field(default_factory=list)
    """Draft tokens verified, by position."""
    accepted: list[int] = field(default_factory=list)
    """Draft tokens accepted, by position."""

    def add(self, num_steps: int, num_tokens: int, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Add the numbers of a step, or the sums of others."""
        self.num_steps += num_steps
        self.num_tokens += num_tokens
        for sums, counts in ((self.drafted, drafted), (self.accepted, accepted)):
            sums += [0] * (len(counts) - len(sums))
            for position, count in enumerate(counts):
                sums[position] += count


@dataclass(slots=True)
class SpeculationFigures(DraftSums):
    """Sums over a window that ends now."""

    seconds: float = 0.0
    """Length of the window; shorter in the first minutes."""

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
        self._slices: deque[tuple[float, DraftSums]] = deque()
        """The sums of about a second each, and when it began."""

    def add(self, step: EngineStep) -> None:
        """Take in a step that ended now."""
        now = self._clock.now()
        if not self._slices or now - self._slices[-1][0] >= _SLICE_S:
            self._forget(now)
            self._slices.append((now, DraftSums()))
        self._slices[-1][1].add(1, step.num_tokens, step.drafted, step.accepted)

    def read(self) -> SpeculationFigures:
        """Return the current sums."""
        now = self._clock.now()
        self._forget(now)
        total = SpeculationFigures(seconds=min(self._window_s, now - self._began_at))
        for _, each in self._slices:
            total.add(each.num_steps, each.num_tokens, each.drafted, each.accepted)
        return total

    def _forget(self, now: float) -> None:
        while self._slices and self._slices[0][0] <= now - self._window_s:
            self._slices.popleft()


class SpeculationTotals:
    """The steps of each K. K is at most the engine's maximum, so the number of totals has a bound."""

    def __init__(self) -> None:
        """Start at 0."""
        self._by_k: dict[int, DraftSums] = {}

    def add(self, step: EngineStep) -> None:
        """Count a step."""
        sums = self._by_k.setdefault(step.num_speculative_tokens, DraftSums())
        sums.add(1, step.num_tokens, step.drafted, step.accepted)

    def read(self) -> list[tuple[int, DraftSums]]:
        """Return K and its totals, by K. Safe in any thread, while a step is being counted, too."""
        return sorted(self._by_k.copy().items(), key=lambda item: item[0])
