"""Dashboard "regions": the regions side by side."""

from grafana_foundation_sdk.builders import dashboard

from deploy.monitoring.dashboards.panels import (
    COUNT,
    JOB,
    PER_SECOND,
    SECONDS,
    SHARE,
    STAGES,
    WAITED_FOR,
    Query,
    bars,
    grid,
    increase,
    lines,
    new_dashboard,
    rate,
    ratio,
    section,
    total,
)

_SCOPE = f'{JOB}, region=~"$region"'
_REGION = ("region",)
_SLO, _TTFT, _REQUESTS = "completion_slo_requests_total", "completion_ttft_seconds", "completion_requests_total"
_QUALITY = "completion_quality_total"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    text = "One row for each region, the same figures over time, and each region's stages."
    made = new_dashboard("regions", "Completions: regions", text, has_instances=False)
    made = section(made, "All regions", _table())
    made = section(made, "Over time", *_over_time())
    return section(made, "Stages of each region, p95", _stages())


def _share(metric: str, matcher: str) -> str:
    part, whole = (increase(metric, *each, by=_REGION, scope=_SCOPE) for each in ((matcher,), ()))
    return ratio(part, whole)


def _table():  # noqa: ANN202
    accepted, shown = (increase(_QUALITY, f'event="{e}"', by=_REGION, scope=_SCOPE) for e in ("accepted", "shown"))
    drafted, kept = (
        increase("completion_tokens_total", f'kind="{kind}"', by=_REGION, scope=_SCOPE)
        for kind in ("drafted", "accepted_draft")
    )
    columns = {
        "servers ready": (COUNT, total("completion_engine_ready", by=_REGION, scope=_SCOPE)),
        "sessions": (COUNT, total("completion_live_sessions", by=_REGION, scope=_SCOPE)),
        "requests": (PER_SECOND, rate(_REQUESTS, by=_REGION, scope=_SCOPE)),
        "in time": (SHARE, _share(_SLO, 'result="in_time"')),
        "TTFT p50": (SECONDS, _quantile("0.5", over_range=True)),
        "TTFT p95": (SECONDS, _quantile("0.95", over_range=True)),
        "TTFT p99": (SECONDS, _quantile("0.99", over_range=True)),
        "shed": (SHARE, _share(_SLO, 'result="shed"')),
        "completions accepted": (SHARE, ratio(accepted, shown)),
        "draft tokens accepted": (SHARE, ratio(kept, drafted)),
    }
    text = "Over the time range; servers, sessions and requests are those of now."
    return grid("Regions", text, columns, by="region")


def _quantile(share: str, *, over_range: bool = False) -> str:
    counted = (increase if over_range else rate)(f"{_TTFT}_bucket", WAITED_FOR, by=("le", "region"), scope=_SCOPE)
    return f"histogram_quantile({share}, {counted})"


def _over_time():  # noqa: ANN202
    legend = "{{region}}"
    in_time, waited = (rate(_SLO, *each, by=_REGION, scope=_SCOPE) for each in (('result="in_time"',), ()))
    shed = rate(_SLO, 'result="shed"', by=_REGION, scope=_SCOPE)
    ended = rate(_REQUESTS, by=_REGION, scope=_SCOPE)
    usage = f"max by (region) (completion_engine_kv_usage_ratio{{{_SCOPE}}})"
    return (
        lines("In time", "Of the requests that somebody waited for.", SHARE, Query(ratio(in_time, waited), legend)),
        lines("TTFT p95", "Without prefetches.", SECONDS, Query(_quantile("0.95"), legend), limit=0.2),
        lines("Requests", "Ended requests.", PER_SECOND, Query(ended, legend), stacked=True),
        lines("Shed", "For lack of capacity, as in the alerts.", SHARE, Query(ratio(shed, waited), legend)),
        lines(
            "Sessions",
            "Open session streams.",
            COUNT,
            Query(total("completion_live_sessions", by=_REGION, scope=_SCOPE), legend),
            stacked=True,
        ),
        lines("KV cache", "The fullest server of each region.", SHARE, Query(usage, legend)),
    )


def _stages():  # noqa: ANN202
    """One panel, which Grafana repeats for each region."""
    buckets = (
        increase("completion_stage_seconds_bucket", f'stage="{stage}"', by=("le",), scope=_SCOPE) for stage in STAGES
    )
    queries = [Query(f"histogram_quantile(0.95, {each})", stage) for stage, each in zip(STAGES, buckets, strict=True)]
    panel = bars("Stages in $region, p95", "decode_token is the time of one token.", SECONDS, *queries, width=24)
    return panel.repeat("region").repeat_direction("h")
