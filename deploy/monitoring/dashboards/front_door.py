"""Dashboard "front-door": what an editor sees from outside, and what the way in refuses before a server knows of it."""

from grafana_foundation_sdk.builders import dashboard

from deploy.monitoring.dashboards.panels import (
    COUNT,
    PER_SECOND,
    SECONDS,
    SHARE,
    Query,
    Section,
    lines,
    new_dashboard,
    ratio,
)

_EDGE, _GATEWAY = 'job="completion-edge"', 'job="completion/completion-gateway"'
_BOTH = 'job=~"completion-edge|completion/completion-gateway"'
_REPLICAS = 'envoy_cluster_name="replicas"'
_HEALTH = f'{_EDGE}, envoy_http_conn_manager_prefix="region_health"'


def build() -> dashboard.Dashboard:
    """Return the dashboard. Its series know no server, so that nothing chooses one."""
    text = (
        "Success and latency of the probe (components/probe); health, refusals and connections of Envoys and gateway."
    )
    return new_dashboard("front-door", "Completions: front door", text, _probe(), _proxies(), variables=())


def _rate(metric: str, by: str, matchers: str = "") -> str:
    selector = f"{metric}{{{matchers}}}" if matchers else metric
    return f"sum by ({by}) (rate({selector}[$__rate_interval]))"


def _probe() -> Section:
    requests = "completion_probe_requests_total"
    answered = ratio(_rate(requests, "server", 'result="answered"'), _rate(requests, "server"))
    buckets = _rate("completion_probe_ttft_seconds_bucket", "server, le")
    return (
        "As an editor sees it",
        lines(
            "Success", "Of the probe's requests, those answered, by front door.", SHARE, Query(answered, "{{server}}")
        ),
        lines(
            "TTFT of the probe, p95",
            "From a request to its first text, the way included.",
            SECONDS,
            Query(f"histogram_quantile(0.95, {buckets})", "{{server}}"),
            limit=0.4,
        ),
        lines(
            "Region reached",
            "The front door that the client library chose where it could choose.",
            PER_SECOND,
            Query(_rate("completion_probe_reached_total", "server"), "{{server}}"),
            stacked=True,
        ),
    )


def _proxies() -> Section:
    # Envoy counts the answers of its health check in no class.
    refused = _rate("envoy_http_downstream_rq_xx", "job", f'{_HEALTH}, envoy_response_code_class="5"')
    handshakes, failed = (
        _rate(f"envoy_listener_ssl_{each}", "job", _GATEWAY) for each in ("handshake", "fail_verify_error")
    )
    return (
        "Envoys and gateway",
        lines(
            "Failed health checks",
            "Share of those at /healthz, by which global DNS leaves the region: 503 while too few servers are healthy.",
            SHARE,
            Query(ratio(refused, _rate("envoy_http_downstream_rq_total", "job", _HEALTH)), "{{job}}"),
        ),
        lines(
            "Healthy servers",
            "As each Envoy sees them, and those that DNS names.",
            COUNT,
            *(
                Query(f"envoy_cluster_membership_{each}{{{_EDGE}, {_REPLICAS}}}", f"{each} {{{{instance}}}}")
                for each in ("healthy", "total")
            ),
        ),
        lines(
            "Proxies up",
            "Envoys, and proxies of the gateway.",
            COUNT,
            Query("job:completion_proxies_up:count", "{{job}}"),
        ),
        lines(
            "Refused by a proxy",
            "Share of the requests without a healthy server, or too many at once. No server counts them.",
            SHARE,
            Query("job:completion_proxy_refused:ratio_rate5m", "{{job}}"),
        ),
        lines(
            "Refused certificates",
            "Share of the gateway's handshakes that the client's certificate ends.",
            SHARE,
            Query(f"{failed} / ({failed} + {handshakes} > 0)", "{{job}}"),
        ),
        lines(
            "Connections",
            "Of all proxies.",
            COUNT,
            Query(f"sum by (job) (envoy_server_total_connections{{{_BOTH}}})", "{{job}}"),
        ),
    )
