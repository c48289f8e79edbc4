"""What a run comes to. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from completion_server.core.outcome import FinishReason
from loadtest.simulation.world import FIRST_TEXT_S, Result, Scenario

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Shares are 0 to 1; of nothing they are None."""

    offered_per_s: float
    """Requests."""
    load: float
    """The same, relative to what the slots could serve whole."""
    seen_per_s: float
    """Completions that came in time and were looked at before the user typed on."""
    seeable_per_s: float
    """Those that would be if every request had a slot at once."""
    pauses_per_s: float
    """Requests after which the user stopped typing."""
    pauses_answered_share: float | None
    """Of these, those that had their first text in time."""
    pause_ttft_ms: tuple[float, ...] | None
    """Of those that had one, as in PERCENTILES."""
    ttft_ms: tuple[float, ...] | None
    """Of all requests that had a first text."""
    shed_share: float | None
    superseded_share: float | None
    """Requests that the user typed past before they had ended."""
    wasted_share: float | None
    """Slot time that went to requests whose completion was not seen."""


def figures_of(results: Iterable[Result], scenario: Scenario) -> Figures:
    """Add up the requests that count."""
    counted = [result for result in results if scenario.counts(result.request)]
    seen = [result for result in counted if is_seen(result, scenario)]
    pauses = [result for result in counted if result.request.is_pause]
    reasons = Counter(result.reason for result in counted)
    busy_s = math.fsum(result.slot_s for result in counted)
    offered_per_s = len(counted) / scenario.seconds
    return Figures(
        offered_per_s=offered_per_s,
        load=offered_per_s / scenario.capacity_per_s,
        seen_per_s=len(seen) / scenario.seconds,
        seeable_per_s=sum(_is_seeable(result, scenario) for result in counted) / scenario.seconds,
        pauses_per_s=len(pauses) / scenario.seconds,
        pauses_answered_share=_share(sum(_is_in_time(result, scenario) for result in pauses), len(pauses)),
        pause_ttft_ms=_percentiles_ms(pauses),
        ttft_ms=_percentiles_ms(counted),
        shed_share=_share(reasons[FinishReason.SHED], len(counted)),
        superseded_share=_share(reasons[FinishReason.SUPERSEDED] + reasons[FinishReason.CANCELLED], len(counted)),
        wasted_share=_share(busy_s - math.fsum(result.slot_s for result in seen), busy_s),
    )


def is_seen(result: Result, scenario: Scenario) -> bool:
    """Return whether the first text came in time, and the user then had a look before typing on."""
    at = result.first_text_at
    return at is not None and _is_in_time(result, scenario) and at + scenario.look_s <= result.request.next_key_at


def _is_in_time(result: Result, scenario: Scenario) -> bool:
    return result.ttft_s is not None and result.ttft_s <= scenario.budget_s_of(result.request)


def _is_seeable(result: Result, scenario: Scenario) -> bool:
    return result.request.at + FIRST_TEXT_S + scenario.look_s <= result.request.next_key_at


def _percentiles_ms(results: Sequence[Result]) -> tuple[float, ...] | None:
    """Return PERCENTILES of the times to first text, by nearest rank."""
    ranked = sorted(result.ttft_s for result in results if result.ttft_s is not None)
    if not ranked:
        return None
    return tuple(ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] * 1000 for percent in PERCENTILES)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
