"""Run statistics and documents for tests, drawn from a seed."""

from typing import Any

import numpy as np

from loadtest.report.document import RunDocument, TargetResult, parse_gates
from loadtest.stats import RunStats
from loadtest.traffic.sections import CriteriaSettings

CRITERIA = CriteriaSettings()


def make_stats(
    seed: int = 0,
    *,
    target: str = "ours",
    num_slices: int = 30,
    per_slice: int = 40,
    ttft_ms: float = 90.0,
    seen_share: float = 0.8,
    regions: tuple[str, ...] = ("local",),
    has_stages: bool = True,
) -> RunStats:
    """Return a run whose TTFT is log-normal around a median; a slow slice is followed by a slow one."""
    chance = np.random.default_rng(seed)
    stats = RunStats(target, float(num_slices), 1.0, workers=frozenset({0}))
    drift = 0.0
    for place in range(num_slices):
        drift = 0.5 * drift + 0.1 * chance.standard_normal()
        for ttft in ttft_ms / 1000 * np.exp(drift + 0.4 * chance.standard_normal(per_slice)):
            is_seen, is_pause = chance.random() < seen_share, chance.random() < 0.5
            record(stats, place + 0.5, float(ttft), is_seen=is_seen, is_pause=is_pause, has_stages=has_stages)
            region = regions[int(chance.integers(len(regions)))]
            stats.total.counters[f"region/{region}/intended"] += 1
            stats.total.counters[f"region/{region}/seen"] += int(is_seen)
            stats.total.record(f"ttft/region/{region}", float(ttft))
    stats.total.counters.update({"sessions": 20, "generated_tokens": 20 * stats.total.counters["intended"]})
    return stats


def record(
    stats: RunStats, at_s: float, ttft_s: float, *, is_seen: bool = True, is_pause: bool = True, has_stages: bool = True
) -> None:
    """Count one answered request."""
    counters = {"intended": 1, "sent": 1, "shown": 1, "good": 1, "seen": int(is_seen), "in_time": int(is_seen)}
    counters |= {"outcome/answered" if is_seen else "outcome/superseded": 1}
    counters |= {"pauses": int(is_pause), "pauses_in_time": int(is_pause and is_seen), "accepted_chars": 4 * is_seen}
    for tally in (stats.total, stats.slice_at(at_s)):
        tally.counters.update(counters)
        tally.record("ttft", ttft_s)
        if is_pause:
            tally.record("ttft/pause", ttft_s)
    total = stats.total
    total.counters.update({"shown_chars": 20, "seen_tokens": 12 * is_seen})
    total.record("total", ttft_s + 0.1)
    total.record("lag", 0.001)
    total.record("ttft/outcome/" + ("answered" if is_seen else "superseded"), ttft_s)
    if has_stages:
        for name, share in (("queue", 0.2), ("tokenise", 0.02), ("prefill", 0.6), ("front_end", 0.18)):
            total.record(f"stage/{name}", ttft_s * share)


def make_document(*runs: RunStats, gates: tuple[str, ...] = (), digest: str = "d1", **scenario: Any) -> RunDocument:
    """Return a document of a run; the keywords are the scenario's."""
    conditions = parse_gates(gates)
    targets = tuple(
        TargetResult.of(stats.target, f"grpc://127.0.0.1:{place + 1}", "grpc", stats, CRITERIA, conditions)
        for place, stats in enumerate(runs)
    )
    tree = {"name": "steady", "sessions": 20, "criteria": CRITERIA.model_dump(mode="json"), "events": []} | scenario
    return RunDocument(
        version="1.2.3",
        scenario=tree,
        schedule_digest=digest,
        started_at="2026-01-02T03:04:05+00:00",
        targets=targets,
        gates=conditions,
    )
