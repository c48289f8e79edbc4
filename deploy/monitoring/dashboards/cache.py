"""Dashboard "cache": the completion cache, the prefix cache, Redis and the other replicas."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.timeseries import Panel

from deploy.monitoring.dashboards.panels import (
    BYTES,
    COUNT,
    PER_SECOND,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    Section,
    each_instance,
    lines,
    new_dashboard,
    quantile,
    rate,
    rates,
    ratio,
    total,
)

_HITS, _MISSES = "completion_cache_hits_total", "completion_cache_misses_total"
_LOCAL = 'level="local"'
_AGE = "completion_cache_hit_age_seconds"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    text = "Completions and prompts that were not computed again, and what replicas share in Redis."
    caches = ("Caches", *_hits(), *_costs_and_savings())
    return new_dashboard("cache", "Completions: caches and replicas", text, caches, _replicas())


def _hits() -> list[Panel]:
    looked_up = f"({rate(_HITS, _LOCAL)} + {rate(_MISSES, _LOCAL)})"
    prompt, cached = (rate("completion_tokens_total", f'kind="{kind}"') for kind in ("prompt", "cached_prompt"))
    return [
        lines(
            "Hit shares",
            "Of the lookups in the completion cache; of the prompts' tokens.",
            SHARE,
            Query(ratio(rate(_HITS), looked_up), "completions"),
            Query(ratio(cached, prompt), "prompt tokens"),
        ),
        lines(
            "Hits",
            "Requests answered from the completion cache.",
            PER_SECOND,
            rates(_HITS, by=("level",)),
            stacked=True,
        ),
        lines(
            "Misses",
            "Lookups without an answer, by level and reason.",
            PER_SECOND,
            rates(_MISSES, by=("level", "reason")),
        ),
        lines(
            "Age of hits",
            "Median age of the completions that answered.",
            SECONDS,
            Query(quantile("0.5", _AGE, by=("level",)), "{{level}}"),
        ),
    ]


def _costs_and_savings() -> list[Panel]:
    return [
        lines(
            "Size",
            "Memory of the completions in the processes.",
            BYTES,
            Query(total("completion_cache_bytes", by=("instance",)), "{{instance}}"),
        ),
        lines(
            "Saved engine time",
            "Seconds of prefill and decode a second that hits did not need.",
            "suffix: s/s",
            Query(rate("completion_cache_saved_engine_seconds_total"), "saved"),
        ),
        lines(
            "Saved tokens",
            "Tokens that cached completions had cost.",
            TOKENS_PER_SECOND,
            rates("completion_cache_saved_tokens_total", by=("kind",)),
        ),
        lines(
            "Lookups in Redis",
            "Time of lookups, failed ones included; requests wait for none of them.",
            SECONDS,
            Query(quantile("0.5", "completion_cache_lookup_seconds"), "p50"),
            Query(quantile("0.99", "completion_cache_lookup_seconds"), "p99"),
        ),
        lines(
            "Completions kept",
            "In the processes.",
            COUNT,
            Query(total("completion_cache_entries", by=("instance",)), "{{instance}}"),
        ),
    ]


def _replicas() -> Section:
    return (
        "Redis and replicas",
        each_instance(
            "Redis", "1: available, the breaker is closed. 0: this server goes on alone.", "completion_redis_available"
        ),
        each_instance(
            "Outages",
            "How often the breaker has opened since the start of each server.",
            "completion_redis_outages_total",
        ),
        lines("Commands", "Commands to Redis.", PER_SECOND, rates("completion_redis_commands_total", by=("instance",))),
        lines(
            "Lanes",
            "Messages about accepted requests, to other replicas and of others.",
            PER_SECOND,
            Query(rate("completion_lane_messages_sent_total"), "sent"),
            Query(rate("completion_lane_messages_received_total"), "received"),
            width=24,
        ),
    )
