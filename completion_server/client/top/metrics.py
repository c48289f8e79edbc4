"""Metrics of a server from the text format of Prometheus, and the figures of an interval. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

_TTFT, _K = "completion_ttft_seconds", "completion_num_speculative_tokens"
NAMES = (
    _TTFT, _K, "completion_requests", "completion_slo_requests", "completion_tokens", "completion_cache_hits",
    "completion_cache_misses",
)  # fmt: skip
"""The metrics that the figures need."""
_WAITED_FOR = ("explicit", "automatic")  # triggers; nobody waits for a prefetch
_COUNTERS = ("_total", "_bucket")  # ends of the names of samples that only grow while a server runs


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of a server's metrics at one time, or what they counted in an interval."""

    uptime_s: float
    """Since the start of the server, or the interval's length."""
    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    """By sample name and labels."""

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return the sums of the samples with this name and these labels, by the value of a further label."""
        sums = dict[str, float]()
        for (sample, found), value in self.values.items():
            if sample == name and labels.items() <= found:
                key = dict(found).get(label, "")
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def since(self, before: "Reading") -> "Reading":
        """Return what was counted after `before`, with the gauges of now. A server that has restarted began at 0."""
        counters = [series for series in self.values if series[0].endswith(_COUNTERS)]
        counted = {series: self.values[series] - before.values.get(series, 0.0) for series in counters}
        if before.uptime_s > self.uptime_s or min(counted.values(), default=0.0) < 0:
            return self
        return Reading(self.uptime_s - before.uptime_s, {**self.values, **counted})


def parse(text: str, uptime_s: float) -> Reading:
    """Return the samples of a page. Raises ValueError if it is not in the text format of Prometheus."""
    samples = (sample for metric in text_string_to_metric_families(text) for sample in metric.samples)
    return Reading(uptime_s, {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples})


def merged(histograms: Iterable[Mapping[str, float]]) -> dict[float, float]:
    """Return the counts of several histograms together, by the upper bounds that servers of all versions have."""
    known = [each for each in histograms if each]
    bounds = sorted(set[str].intersection(*map(set, known)), key=float) if known else []
    return {float(bound): math.fsum(each[bound] for each in known) for bound in bounds}


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """Return the value that `share` (0 to 1) of a histogram's values do not exceed; None without values.

    `counts` are the values up to each bound, those of smaller bounds included; the last bound is infinity. Linear
    within a bucket, from 0 in the first one, as Prometheus's `histogram_quantile`. A value beyond the last finite bound
    is given as that bound.
    """
    rank = share * max(counts.values(), default=0.0)
    start = below = 0.0
    for bound, count in counts.items():
        if count >= rank and count > below:
            return start if math.isinf(bound) else start + (bound - start) * (rank - below) / (count - below)
        start, below = bound, count
    return None


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened in an interval. A share is 0 to 1, and None where nothing was counted."""

    requests_per_s: float  # that ended
    in_time_share: float | None  # of the requests that somebody waited for: first token within the budget
    ttft_ms: dict[str, float | None]  # p50 and p95, without prefetches
    shed_share: float | None  # of the requests that ended
    cache_hit_share: float | None  # of the lookups in the completion cache
    prefix_cache_share: float | None  # of the prompts' tokens: not computed again by the engine
    num_speculative_tokens: tuple[int, int] | None  # the smallest and the largest K of the servers, now
    acceptance: float | None  # of the draft tokens


def figures_of(counted: Sequence[Reading]) -> Figures:
    """Return the figures of one or several servers."""

    def total(name: str, *readings: Reading, **labels: str) -> float:
        found = (each.by(f"completion_{name}_total", "", **labels) for each in readings or counted)
        return math.fsum(value for each in found for value in each.values())

    buckets = (each.by(f"{_TTFT}_bucket", "le", trigger=trigger) for each in counted for trigger in _WAITED_FOR)
    ttft, ks = merged(buckets), [round(k) for each in counted for k in each.by(_K, "").values()]
    # A miss in a process's memory may be a hit in Redis.
    lookups = total("cache_hits", level="local") + total("cache_misses", level="local")
    return Figures(
        # A server that has restarted has counted for a shorter time.
        requests_per_s=math.fsum(total("requests", each) / (each.uptime_s or 1) for each in counted),
        in_time_share=_share(total("slo_requests", result="in_time"), total("slo_requests")),
        ttft_ms={name: (s := quantile(ttft, share)) and s * 1000 for name, share in (("p50", 0.5), ("p95", 0.95))},
        shed_share=_share(total("requests", outcome="shed"), total("requests")),
        cache_hit_share=_share(total("cache_hits"), lookups),
        prefix_cache_share=_share(total("tokens", kind="cached_prompt"), total("tokens", kind="prompt")),
        num_speculative_tokens=(min(ks), max(ks)) if ks else None,
        acceptance=_share(total("tokens", kind="accepted_draft"), total("tokens", kind="drafted")),
    )


def _share(part: float, whole: float) -> float | None:
    """Return a share. Two counters of one page may differ by what was counted between their readings."""
    return min(1.0, part / whole) if whole > 0 else None
