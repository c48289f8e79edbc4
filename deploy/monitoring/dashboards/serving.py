"""Dashboard "serving": the objective, the stage waterfall by percentile, what became of requests, and the queue."""

from grafana_foundation_sdk.builders import dashboard

from deploy.monitoring.dashboards.panels import (
    COUNT,
    PER_SECOND,
    PERCENTILES,
    REVISION,
    SECONDS,
    SHARE,
    STAGES,
    WAITED_FOR,
    Query,
    Section,
    bars,
    changes,
    each_instance,
    half_lines,
    heat,
    increase,
    lines,
    new_dashboard,
    number,
    quantile,
    rate,
    rates,
    ratio,
    select,
    total,
)

_SLO, _TTFT, _STAGE = "completion_slo_requests_total", "completion_ttft_seconds", "completion_stage_seconds"
_IN_TIME = 'result="in_time"'


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    text = "Latency by stage and percentile, outcomes, queue and engine."
    waterfall = ("Waterfall by percentile", *map(_waterfall, PERCENTILES), *map(_stages, PERCENTILES))
    sections = (_objective(), _revisions(), waterfall, _ttft(), _outcomes(), _queue(), _processes())
    return new_dashboard("serving", "Completions: serving", text, *sections)


def _objective() -> Section:
    in_time = Query(ratio(increase(_SLO, _IN_TIME), increase(_SLO)))
    waited = "Of the requests that somebody waited for, those with their first token within the budget."
    return (
        "Objective: 95% in time",
        number("In time", waited, SHARE, in_time, ("red", None), ("yellow", 0.95), ("green", 0.99)),
        number(
            "TTFT p95",
            "From a request's receipt to its first token, without prefetches.",
            SECONDS,
            Query(quantile("0.95", _TTFT, WAITED_FOR, over_range=True)),
            ("green", None),
            ("yellow", 0.1),
            ("red", 0.2),
        ),
        number("Requests", "Ended requests a second, now.", PER_SECOND, Query(rate("completion_requests_total"))),
        number("Sessions", "Open session streams, now.", COUNT, Query(total("completion_live_sessions"))),
    )


def _revisions() -> Section:
    """Old and new side by side while a rollout has both."""
    legend, by = "{{model_revision}}", (REVISION,)
    shown, accepted = (rate("completion_quality_total", f'event="{event}"', by=by) for event in ("shown", "accepted"))
    return (
        "By the model's revision",
        lines(
            "In time, by revision",
            "Of the requests that somebody waited for.",
            SHARE,
            Query(ratio(rate(_SLO, _IN_TIME, by=by), rate(_SLO, by=by)), legend),
        ),
        lines(
            "TTFT p95, by revision",
            "Without prefetches.",
            SECONDS,
            Query(quantile("0.95", _TTFT, WAITED_FOR, by=by), legend),
            limit=0.2,
        ),
        lines(
            "Accepted, by revision", "Of the completions that were shown.", SHARE, Query(ratio(accepted, shown), legend)
        ),
    )


def _waterfall(share: str):  # noqa: ANN202
    """A query for each stage keeps their order."""
    queries = [Query(quantile(share, _STAGE, f'stage="{stage}"', over_range=True), stage) for stage in STAGES]
    text = "Time in each stage over the whole time range; decode_token is the time of one token."
    return bars(f"Stages, {PERCENTILES[share]}", text, SECONDS, *queries)


def _stages(share: str):  # noqa: ANN202
    queries = [Query(quantile(share, _STAGE, f'stage="{stage}"'), stage, has_exemplars=True) for stage in STAGES]
    text = "Which stage grew. Percentiles of stages do not add up to the percentile of the whole."
    return lines(f"Stages over time, {PERCENTILES[share]}", text, SECONDS, *queries, stacked=True)


def _ttft() -> Section:
    queries = [Query(quantile(s, _TTFT, WAITED_FOR), name, has_exemplars=True) for s, name in PERCENTILES.items()]
    budget = Query(f"max{select('completion_ttft_budget_seconds')}", "budget")
    buckets = Query(rate(f"{_TTFT}_bucket", WAITED_FOR, by=("le",)), "{{le}}")
    return (
        "Time to first token",
        half_lines(
            "TTFT",
            "By percentile, with the budget, without prefetches; the dots are traces.",
            SECONDS,
            *queries,
            budget,
            limit=0.2,
        ),
        heat(
            "TTFT, all percentiles",
            "Requests a second by TTFT, without prefetches: two groups show that a part of the requests waits.",
            buckets,
        ),
    )


def _outcomes() -> Section:
    requests = "completion_requests_total"
    shed = rate(requests, 'outcome="shed"', 'shed_reason!=""', by=("shed_reason",))
    return (
        "Outcomes",
        half_lines(
            "Outcomes",
            "Ended requests by outcome: answered (stop, length), superseded, cancelled, shed, failed.",
            PER_SECOND,
            rates(requests, by=("outcome",)),
            stacked=True,
        ),
        half_lines(
            "The objective",
            "Requests that somebody waited for, by result. All but in_time count against it.",
            PER_SECOND,
            rates(_SLO, by=("result",)),
            stacked=True,
        ),
        lines(
            "Shed",
            "Share of the ended requests, by reason.",
            SHARE,
            Query(f"{shed} / on () group_left () ({rate(requests)} > 0)", "{{shed_reason}}"),
            width=6,
            stacked=True,
        ),
        lines(
            "Refused",
            "Requests that were not admitted, by status code.",
            PER_SECOND,
            rates("completion_refused_requests_total", by=("code",)),
            width=6,
        ),
        lines(
            "Refused credentials",
            "Callers that were not verified, by reason; only with authentication.",
            PER_SECOND,
            rates("completion_authentications_total", 'result!="accepted"', by=("result",)),
            width=6,
        ),
        lines(
            "By trigger", "Ended requests by what caused them.", PER_SECOND, rates(requests, by=("trigger",)), width=6
        ),
    )


def _queue() -> Section:
    return (
        "Queue and engine",
        lines(
            "Slots and queue",
            "Requests that wait, slots in use and slots; the server adapts their number.",
            COUNT,
            Query(total("completion_queued_requests"), "waiting"),
            Query(total("completion_running_requests"), "in use"),
            Query(total("completion_slots"), "slots"),
        ),
        lines(
            "Engine",
            "The engine's own queue should stay empty: requests that wait there can't be dropped.",
            COUNT,
            Query(total("completion_engine_running_requests"), "running"),
            Query(total("completion_engine_waiting_requests"), "waiting in the engine"),
        ),
        each_instance(
            "KV cache", "Share of the KV cache in use by live generations.", "completion_engine_kv_usage_ratio", SHARE
        ),
        lines(
            "Event loop",
            "Lateness of the event loop. All work in it waits as long.",
            SECONDS,
            Query(quantile("0.99", "completion_loop_lag_seconds", by=("instance",)), "p99 {{instance}}"),
        ),
        lines(
            "Aborts",
            "From the abort of a running request until its slot is free.",
            SECONDS,
            Query(quantile("0.95", "completion_abort_seconds"), "p95"),
        ),
        each_instance("Restarts of the engine", "Since the start of each server.", "completion_engine_restarts_total"),
    )


def _processes() -> Section:
    server = ("instance",)
    return (
        "Processes",
        half_lines(
            "Processes started again",
            "In the last hour, after one had ended.",
            COUNT,
            Query(changes("process_start_time_seconds", "1h", by=server), "{{instance}}"),
        ),
        half_lines(
            "Cores in use",
            "By a server's process, without its engine.",
            "suffix: cores",
            Query(rate("process_cpu_seconds_total", by=server), "{{instance}}"),
        ),
    )
