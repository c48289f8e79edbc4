"""Dashboard "regions": the regions side by side."""

from functools import partial

from grafana_foundation_sdk.builders import dashboard

from deploy.monitoring.dashboards.panels import (
    COUNT,
    JOB,
    OF_REGIONS,
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
    select,
    total,
)

_SCOPE = f'{JOB}, region=~"$region"'
_increase, _rate, _total = (partial(each, by=("region",), scope=_SCOPE) for each in (increase, rate, total))
_SLO, _TTFT, _REQUESTS = "completion_slo_requests_total", "completion_ttft_seconds", "completion_requests_total"
_QUALITY = "completion_quality_total"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    text = "One row for each region, the same figures over time, and each region's stages."
    stages = ("Stages of each region, p95", _stages())
    sections = (("All regions", _table()), ("Over time", *_over_time()), stages)
    return new_dashboard("regions", "Completions: regions", text, *sections, variables=OF_REGIONS)


def _share(metric: str, matcher: str) -> str:
    part, whole = (_increase(metric, *each) for each in ((matcher,), ()))
    return ratio(part, whole)


def _table():  # noqa: ANN202
    accepted, shown = (_increase(_QUALITY, f'event="{e}"') for e in ("accepted", "shown"))
    drafted, kept = (_increase("completion_tokens_total", f'kind="{kind}"') for kind in ("drafted", "accepted_draft"))
    columns = {
        "servers ready": (COUNT, _total("completion_engine_ready")),
        "sessions": (COUNT, _total("completion_live_sessions")),
        "requests": (PER_SECOND, _rate(_REQUESTS)),
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
    counted = (_increase if over_range else _rate)(f"{_TTFT}_bucket", WAITED_FOR, by=("le", "region"))
    return f"histogram_quantile({share}, {counted})"


def _over_time():  # noqa: ANN202
    legend = "{{region}}"
    in_time, waited = (_rate(_SLO, *each) for each in (('result="in_time"',), ()))
    shed = _rate(_SLO, 'result="shed"')
    ended = _rate(_REQUESTS)
    usage = f"max by (region) {select('completion_engine_kv_usage_ratio', scope=_SCOPE)}"
    return (
        lines("In time", "Of the requests that somebody waited for.", SHARE, Query(ratio(in_time, waited), legend)),
        lines("TTFT p95", "Without prefetches.", SECONDS, Query(_quantile("0.95"), legend), limit=0.2),
        lines("Requests", "Ended requests.", PER_SECOND, Query(ended, legend), stacked=True),
        lines("Shed", "For lack of capacity, as in the alerts.", SHARE, Query(ratio(shed, waited), legend)),
        lines(
            "Sessions", "Open session streams.", COUNT, Query(_total("completion_live_sessions"), legend), stacked=True
        ),
        lines("KV cache", "The fullest server of each region.", SHARE, Query(usage, legend)),
    )


def _stages():  # noqa: ANN202
    """One panel, which Grafana repeats for each region."""
    buckets = (_increase("completion_stage_seconds_bucket", f'stage="{stage}"', by=("le",)) for stage in STAGES)
    queries = [Query(f"histogram_quantile(0.95, {each})", stage) for stage, each in zip(STAGES, buckets, strict=True)]
    panel = bars("Stages in $region, p95", "decode_token is the time of one token.", SECONDS, *queries, width=24)
    return panel.repeat("region").repeat_direction("h")
