"""Counts drafted and accepted tokens since the start, by K and by position. Pure."""

from dataclasses import dataclass, field

from completion_server.engine.interface import EngineStep


@dataclass(slots=True)
class DraftTotals:
    """The steps with one K."""

    num_steps: int = 0
    drafted: list[int] = field(default_factory=list)
    """Draft tokens verified, by position."""
    accepted: list[int] = field(default_factory=list)
    """Draft tokens accepted, by position."""


class SpeculationTotals:
    """The steps of each K. K is at most the engine's maximum, so the number of totals has a bound."""

    def __init__(self) -> None:
        """Start at 0."""
        self._by_k: dict[int, DraftTotals] = {}

    def add(self, step: EngineStep) -> None:
        """Count a step."""
        k = step.num_speculative_tokens
        totals = self._by_k.get(k)
        if totals is None:
            totals = self._by_k[k] = DraftTotals(0, [0] * k, [0] * k)
        totals.num_steps += 1
        for position, (drafted, accepted) in enumerate(zip(step.drafted, step.accepted, strict=True)):
            totals.drafted[position] += drafted
            totals.accepted[position] += accepted

    def read(self) -> list[tuple[int, DraftTotals]]:
        """Return K and its totals, by K. Safe in any thread, while a step is being counted, too."""
        return sorted(self._by_k.copy().items(), key=lambda item: item[0])
