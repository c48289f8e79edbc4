"""Dashboard "tenants": the tenants of `metrics.tenants`, and all others together."""

from grafana_foundation_sdk.builders import dashboard

from deploy.monitoring.dashboards.panels import (
    COUNT,
    OF_SERVERS,
    PER_SECOND,
    SCOPE,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    grid,
    half_lines,
    increase,
    new_dashboard,
    quantile,
    rate,
    rates,
    ratio,
)

_REQUESTS, _TTFT, _TOKENS = (f"completion_tenant_{name}" for name in ("requests_total", "ttft_seconds", "tokens_total"))
_CHOSEN = 'tenant=~"$tenant"'
_TENANT = ("tenant",)
_LEGEND = "{{tenant}}"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    text = "Needs metrics.tenants in the configuration. Tenants that are not there count as other."
    sections = (("All tenants", _table()), ("Over time", *_over_time()))
    variables = (*OF_SERVERS, ("tenant", "Tenant", f"{_REQUESTS}{{{SCOPE}}}"))
    return new_dashboard("tenants", "Completions: tenants", text, *sections, variables=variables)


def _table():  # noqa: ANN202
    columns = {
        "requests": (COUNT, increase(_REQUESTS, _CHOSEN, by=_TENANT)),
        "first token within 200 ms": (SHARE, _within(increase)),
        "TTFT p50": (SECONDS, quantile("0.5", _TTFT, _CHOSEN, by=_TENANT, over_range=True)),
        "TTFT p95": (SECONDS, quantile("0.95", _TTFT, _CHOSEN, by=_TENANT, over_range=True)),
        "shed": (SHARE, _share(increase, 'outcome="shed"')),
        "tokens computed": (COUNT, increase(_TOKENS, _CHOSEN, 'kind="completion"', by=_TENANT)),
        "prompt tokens": (COUNT, increase(_TOKENS, _CHOSEN, 'kind="prompt"', by=_TENANT)),
    }
    return grid("Tenants", "Over the time range.", columns, by="tenant")


def _over_time():  # noqa: ANN202
    outcomes = rate(_REQUESTS, _CHOSEN, by=("tenant", "outcome"))
    return (
        half_lines(
            "Requests", "Ended requests by tenant.", PER_SECOND, rates(_REQUESTS, _CHOSEN, by=_TENANT), stacked=True
        ),
        half_lines(
            "First token within 200 ms", "Of the requests with a first token.", SHARE, Query(_within(rate), _LEGEND)
        ),
        half_lines(
            "TTFT p95", "By tenant.", SECONDS, Query(quantile("0.95", _TTFT, _CHOSEN, by=_TENANT), _LEGEND), limit=0.2
        ),
        half_lines(
            "Shed",
            "Share of the ended requests, over the tenant's own limits or for the server's load.",
            SHARE,
            Query(_share(rate, 'outcome="shed"'), _LEGEND),
        ),
        half_lines(
            "Outcomes", "By tenant.", PER_SECOND, Query(f"{outcomes} > 0", "{{tenant}} {{outcome}}"), stacked=True
        ),
        half_lines(
            "Tokens",
            "Computed for each tenant, by kind; cached prompt tokens are a part of the prompt's.",
            TOKENS_PER_SECOND,
            rates(_TOKENS, _CHOSEN, by=("tenant", "kind")),
        ),
    )


def _within(counted) -> str:  # noqa: ANN001
    part, whole = (
        counted(f"{_TTFT}_bucket", _CHOSEN, 'le="0.2"', by=_TENANT),
        counted(f"{_TTFT}_count", _CHOSEN, by=_TENANT),
    )
    return ratio(part, whole)


def _share(counted, matcher: str) -> str:  # noqa: ANN001
    return ratio(counted(_REQUESTS, _CHOSEN, matcher, by=_TENANT), counted(_REQUESTS, _CHOSEN, by=_TENANT))
