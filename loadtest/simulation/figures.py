"""Sums the results of a simulated run up. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from completion_server.core.outcome import FinishReason
from loadtest.simulation.workload import SimulatedResult, Workload

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """The figures of one policy on one workload. Shares are 0 to 1, None without requests."""

    offered_per_s: float
    """Requests per second."""
    load: float
    """The same, relative to the requests that the slots can serve to the end."""
    seen_per_s: float
    """Completions that came in time and stood long enough before the next key."""
    seeable_per_s: float
    """Completions that would be seen if every request had a slot at once."""
    pauses_per_s: float
    """Requests after which the user stopped typing."""
    pauses_answered_share: float | None
    """Share of these requests that had their first text in time."""
    pause_ttft_ms: tuple[float, ...] | None
    """PERCENTILES over the pauses that had a first text."""
    ttft_ms: tuple[float, ...] | None
    """PERCENTILES over all requests that had a first text."""
    shed_share: float | None
    superseded_share: float | None
    """Share of requests that a newer key ended."""
    wasted_share: float | None
    """Share of slot time spent on requests whose completion was not seen."""


def figures_of(results: Iterable[SimulatedResult], workload: Workload) -> PolicyFigures:
    """Sum up the requests that count."""
    counted = [result for result in results if workload.counts(result.request)]
    seen = [result for result in counted if is_seen(result, workload)]
    pauses = [result for result in counted if result.request.is_pause]
    reasons = Counter(result.reason for result in counted)
    busy_s = math.fsum(result.slot_s for result in counted)
    offered_per_s = len(counted) / workload.seconds
    return PolicyFigures(
        offered_per_s=offered_per_s,
        load=offered_per_s / workload.capacity_per_s,
        seen_per_s=len(seen) / workload.seconds,
        seeable_per_s=sum(_is_seeable(result, workload) for result in counted) / workload.seconds,
        pauses_per_s=len(pauses) / workload.seconds,
        pauses_answered_share=_share(sum(_is_in_time(result, workload) for result in pauses), len(pauses)),
        pause_ttft_ms=_percentiles_ms(pauses),
        ttft_ms=_percentiles_ms(counted),
        shed_share=_share(reasons[FinishReason.SHED], len(counted)),
        superseded_share=_share(reasons[FinishReason.SUPERSEDED] + reasons[FinishReason.CANCELLED], len(counted)),
        wasted_share=_share(busy_s - math.fsum(result.slot_s for result in seen), busy_s),
    )


def is_seen(result: SimulatedResult, workload: Workload) -> bool:
    """Return whether the first text came in time and stood long enough before the next key."""
    at = result.first_text_at
    return at is not None and _is_in_time(result, workload) and at + workload.look_s <= result.request.next_key_at


def _is_in_time(result: SimulatedResult, workload: Workload) -> bool:
    return result.ttft_s is not None and result.ttft_s <= workload.budget_s_of(result.request)


def _is_seeable(result: SimulatedResult, workload: Workload) -> bool:
    return result.request.at + workload.profile.first_text_s + workload.look_s <= result.request.next_key_at


def _percentiles_ms(results: Sequence[SimulatedResult]) -> tuple[float, ...] | None:
    """Return PERCENTILES of the times to first text, by nearest rank."""
    ranked = sorted(result.ttft_s for result in results if result.ttft_s is not None)
    if not ranked:
        return None
    return tuple(ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] * 1000 for percent in PERCENTILES)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
