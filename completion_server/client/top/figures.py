"""The figures of an interval, of one server or of several together, from the changes of their metrics. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from completion_server.client.top.readings import BucketHistogram, Reading, merged

PERCENTILES = (0.5, 0.95, 0.99)
STAGES = ("receive", "admission", "queue", "tokenise", "prefill", "decode_token", "stream")
"""In the order in which a request passes them; decode_token is the time of one token."""
_STAGE_SECONDS, _TTFT_SECONDS = "completion_stage_seconds", "completion_ttft_seconds"
NAMES = (
    _STAGE_SECONDS, _TTFT_SECONDS, "completion_requests", "completion_slo_requests", "completion_refused_requests",
    "completion_tokens", "completion_wasted_tokens", "completion_engine_generated_tokens",
    "completion_engine_aborted_tokens", "completion_cache_hits", "completion_cache_misses",
    "completion_num_speculative_tokens", "completion_ttft_budget_seconds", "completion_engine_kv_usage_ratio",
)  # fmt: skip
"""The metrics that the figures need."""
_MS_PER_S = 1000.0
_WAITED_FOR = ("explicit", "automatic")
"""The triggers of requests that somebody waits for; nobody waits for a prefetch."""

Times = tuple[float | None, ...]
"""Milliseconds, one for each of PERCENTILES; None without values."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened in an interval. A share is 0 to 1, and None where nothing was counted."""

    interval_s: float
    requests_per_s: float
    """Ended requests."""
    refused_per_s: float
    """Requests that were not admitted."""
    in_time_share: float | None
    """Of the requests that somebody waited for, those with their first token within the budget."""
    ttft_ms: Times
    """Without prefetches, as in the share in time."""
    stages_ms: dict[str, Times]
    """By stage, for the stages that the servers measure."""
    outcomes: dict[str, float]
    """Share of the ended requests, by outcome."""
    shed: dict[str, float]
    """Share of the ended requests, by the reason for which they were shed."""
    cache_hit_share: float | None
    """Of the lookups in the completion cache."""
    prefix_cache_share: float | None
    """Of the prompts' tokens, those that the engine did not compute again."""
    acceptance: float | None
    """Of the draft tokens."""
    wasted_share: float | None
    """Of the tokens that the engine generated, those for requests without an answer."""
    budget_ms: float | None
    """The largest budget of the servers, now."""
    num_speculative_tokens: tuple[int, int] | None
    """The smallest and the largest K of the servers, now."""
    kv_usage: float | None
    """The largest share of a server's KV cache that is in use, now."""


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """A server's metrics now, and what they counted in the interval."""

    now: Reading
    counted: Reading


def figures_of(changes: Sequence[IntervalChange]) -> Figures | None:
    """Return the figures of one or several servers; None without a server."""
    if not changes:
        return None
    counted = merged(each.counted for each in changes)
    outcomes = counted.by("completion_requests_total", "outcome")
    num_ended = math.fsum(outcomes.values())
    shed = counted.by("completion_requests_total", "shed_reason", outcome="shed")
    ks = _gauges(changes, "completion_num_speculative_tokens")
    return Figures(
        interval_s=counted.uptime_s,
        requests_per_s=_rate(changes, "completion_requests_total"),
        refused_per_s=_rate(changes, "completion_refused_requests_total"),
        in_time_share=_share(
            counted.total("completion_slo_requests_total", result="in_time"),
            counted.total("completion_slo_requests_total"),
        ),
        ttft_ms=_times(
            BucketHistogram.merged(
                each.counted.histogram(_TTFT_SECONDS, trigger=t) for each in changes for t in _WAITED_FOR
            )
        ),
        stages_ms=_stages(changes),
        outcomes={name: count / num_ended for name, count in sorted(outcomes.items()) if count},
        shed={name: count / num_ended for name, count in sorted(shed.items()) if count},
        cache_hit_share=_cache_hit_share(counted),
        prefix_cache_share=_token_share(counted, "cached_prompt", "prompt"),
        acceptance=_token_share(counted, "accepted_draft", "drafted"),
        wasted_share=_wasted_share(counted),
        budget_ms=_largest(_gauges(changes, "completion_ttft_budget_seconds"), _MS_PER_S),
        num_speculative_tokens=(round(min(ks)), round(max(ks))) if ks else None,
        kv_usage=_largest(_gauges(changes, "completion_engine_kv_usage_ratio")),
    )


def _stages(changes: Sequence[IntervalChange]) -> dict[str, Times]:
    histograms = {stage: _histogram(changes, _STAGE_SECONDS, stage=stage) for stage in STAGES}
    return {stage: _times(histogram) for stage, histogram in histograms.items() if histogram.bounds}


def _histogram(changes: Sequence[IntervalChange], name: str, **labels: str) -> BucketHistogram:
    return BucketHistogram.merged(each.counted.histogram(name, **labels) for each in changes)


def _times(histogram: BucketHistogram) -> Times:
    found = (histogram.quantile(share) for share in PERCENTILES)
    return tuple(None if seconds is None else seconds * _MS_PER_S for seconds in found)


def _rate(changes: Sequence[IntervalChange], name: str) -> float:
    """Return the sum of the servers' rates: one that has restarted has counted for a shorter time."""
    return math.fsum(each.counted.total(name) / (each.counted.uptime_s or 1.0) for each in changes)


def _cache_hit_share(counted: Reading) -> float | None:
    """Return the share of hits. A miss in a process's memory may be a hit in Redis."""
    hits = counted.by("completion_cache_hits_total", "level")
    misses = counted.total("completion_cache_misses_total", level="local")
    return _share(math.fsum(hits.values()), hits.get("local", 0.0) + misses)


def _wasted_share(counted: Reading) -> float | None:
    """Return the share of wasted tokens. The engine's own count has those after an abort, which no request has."""
    wasted = counted.total("completion_wasted_tokens_total") + counted.total("completion_engine_aborted_tokens_total")
    return _share(wasted, counted.total("completion_engine_generated_tokens_total"))


def _token_share(counted: Reading, part: str, whole: str) -> float | None:
    tokens = counted.by("completion_tokens_total", "kind")
    return _share(tokens.get(part, 0.0), tokens.get(whole, 0.0))


def _share(part: float, whole: float) -> float | None:
    """Return a share. Two counters of one page may differ by what was counted between their readings."""
    return min(1.0, part / whole) if whole > 0 else None


def _gauges(changes: Sequence[IntervalChange], name: str) -> list[float]:
    return [each.now.total(name) for each in changes if each.now.has(name)]


def _largest(values: Sequence[float], factor: float = 1.0) -> float | None:
    return max(values) * factor if values else None
