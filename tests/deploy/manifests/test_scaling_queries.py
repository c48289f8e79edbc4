"""The queries by which a canary is taken back and KEDA adds servers, evaluated by Prometheus's own promtool."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from completion_server.telemetry.metrics import Metrics
from completion_server.telemetry.quality import SloResult
from tests.deploy.manifests.targets import rendered
from tests.support.kustomize import one
from tests.support.rules import RULE_FILES, Expression, check_expressions, load_groups, load_rules, selectors

HASH = "5d8f7c9b66"
CANARY, STABLE = f"completion-server-{HASH}-abcde", "completion-server-77f9c9d5b4-fghij"
RECORDED = "region:completion_canary_slo_requests:rate10m"
"""The requests of the canary, recorded beside the alert."""
DEFAULT_ERROR_LIMIT = 4
"""Failed queries after each other that Argo Rollouts allows by itself (its analysis/analysis.go)."""
OF_APP = {"completion_engine_restarts"}
"""Metrics that the composition root adds to those of `Metrics`."""

Load = dict[str, float]
"""Requests a second by their result."""


def analysis() -> dict[str, dict[str, Any]]:
    """Return the metrics of the canary's analysis by their names."""
    template = one(rendered("regions/us-east"), "AnalysisTemplate", "completion-server")
    return {each["name"]: each for each in template["spec"]["metrics"]}


def query_of(metric: dict[str, Any]) -> str:
    query: str = metric["provider"]["prometheus"]["query"]
    return query.replace("{{args.hash}}", HASH)


def keda_queries() -> dict[str, tuple[str, float]]:
    """Return KEDA's queries and thresholds by the triggers' names."""
    triggers = one(rendered("regions/us-east"), "ScaledObject", "completion-server")["spec"]["triggers"]
    return {each["name"]: (each["metadata"]["query"], float(each["metadata"]["threshold"])) for each in triggers}


def slo_series(rates: Load, labels: str = "") -> dict[str, str]:
    """Return the counters of the objective under a load by result, as a server exports them, with further labels."""
    name = 'completion_slo_requests_total{region="us-east", result="%s"%s}'
    return {name % (result, labels): f"0+{60 * rate:g}x60" for result, rate in rates.items()}


def of_pod(pod: str) -> str:
    """Return the labels that the scrape adds to a pod's series."""
    return f', namespace="completion", pod="{pod}"'


def queue_series(num_per_s: float) -> dict[str, str]:
    """Return the histogram of the wait for a slot: nine of ten within 20 ms, all within 40 ms."""
    name = 'completion_stage_seconds_bucket{region="us-east", stage="queue", le="%s"}'
    shares = {"0.02": 0.9, "0.04": 1.0, "+Inf": 1.0}
    return {name % le: f"0+{60 * num_per_s * share:g}x60" for le, share in shares.items()}


BURNS: dict[str, tuple[Load, float]] = {
    "all in time": ({"in_time": 8, "late": 0}, 0),
    "as allowed": ({"in_time": 19, "late": 1}, 1),
    "half late": ({"in_time": 4, "late": 4}, 10),
    "half shed": ({"in_time": 4, "shed": 4}, 10),
    "half fail": ({"in_time": 4, "failed": 4}, 10),
    "nothing is answered": ({"in_time": 0, "refused": 4}, 20),
}
ALERT_RESULTS: dict[str, tuple[Load, Sequence[str], float | None]] = {
    "the canary is late": ({"in_time": 4, "late": 4}, RULE_FILES, 1),
    "the canary is in time": ({"in_time": 8}, RULE_FILES, 0),
    "the alert is not loaded": ({"in_time": 4, "late": 4}, ("recording-rules.yaml",), None),
    "no rule is loaded": ({"in_time": 4, "late": 4}, (), None),
    "the canary is not scraped": ({}, RULE_FILES, None),
    "the canary has no requests": ({"in_time": 0, "late": 0}, RULE_FILES, None),
    "the canary has few requests": ({"in_time": 0.02}, RULE_FILES, 0),
}


def burn_rates() -> Iterator[Expression]:
    """Yield the canary's own burn rates, beside stable pods that do otherwise."""
    query = query_of(analysis()["burn-rate-5m"])
    for about, (requests, burn) in BURNS.items():
        stable: Load = {"in_time": 1, "late": 50} if burn == 0 else {"in_time": 50}
        series = slo_series(requests, of_pod(CANARY)) | slo_series(stable, of_pod(STABLE))
        yield Expression(about, series, f"round({query}, 0.001)", burn)
    series = slo_series({"in_time": 0, "late": 0}, of_pod(CANARY)) | slo_series({"in_time": 50}, of_pod(STABLE))
    yield Expression("a canary without requests proves nothing", series, query, None)


def burn_rate_alerts() -> Iterator[Expression]:
    """Yield cases in which an alert that does not fire is evidence only with requests and rules."""
    query = query_of(analysis()["burn-rate-alert"])
    for about, (canary, files, value) in ALERT_RESULTS.items():
        series = slo_series(canary, ', track="canary"') | slo_series({"in_time": 50, "late": 0}, ', track="stable"')
        yield Expression(about, series, query, value, files)


def engine_restarts() -> Iterator[Expression]:
    query = query_of(analysis()["engine-restarts"])
    counter = f'completion_engine_restarts_total{{namespace="completion", pod="{CANARY}"}}'
    yield Expression("three restarts", {counter: "0x50 1 2 3 3x7"}, f"({query}) > bool 2", 1)
    yield Expression("no restart", {counter: "0x60"}, query, 0)
    yield Expression("no engine", {}, query, None)


def scaling() -> Iterator[Expression]:
    """Yield what KEDA sees: waiting, shedding, and 0 without requests and, for a drained region, without servers."""
    queries = keda_queries()
    queue, shed = queries["queue-wait"][0], queries["shed-share"][0]
    recorded = ("recording-rules.yaml",)
    yield Expression("requests wait", queue_series(100), f"round({queue})", 30, recorded)
    yield Expression("requests are shed", slo_series({"in_time": 96, "shed": 4}), f"round({shed}, 0.001)", 4, recorded)
    quiet = queue_series(0) | slo_series({"in_time": 0, "shed": 0})
    for query in (queue, shed):
        yield Expression("no requests", quiet, query, 0, recorded)
        yield Expression("no servers", {}, query, 0, recorded)


@pytest.mark.full
@pytest.mark.parametrize("expressions", [burn_rates, burn_rate_alerts, engine_restarts, scaling])
def test_queries_answer(expressions: Callable[[], Iterator[Expression]], tmp_path: Path) -> None:
    assert check_expressions(list(expressions()), tmp_path) == ""


def test_kedas_thresholds_are_between_the_figures_of_quiet_and_of_trouble() -> None:
    assert {name: threshold for name, (_, threshold) in keda_queries().items()} == {"queue-wait": 30, "shed-share": 2}
    triggers = one(rendered("regions/us-east"), "ScaledObject", "completion-server")["spec"]["triggers"]
    assert {each["metadata"]["ignoreNullValues"] for each in triggers} == {"false"}, "no figure is an error"


def phase(metric: dict[str, Any], result: list[float]) -> str:
    """Return what Argo Rollouts makes of a measurement with the answer `result` (its utils/evaluate)."""

    def holds(condition: str) -> bool:
        return bool(eval(metric[condition].replace("&&", "and"), {"len": len, "result": result}))

    try:
        is_good = holds("successCondition")
        is_bad = holds("failureCondition") if "failureCondition" in metric else not is_good
    except IndexError:
        return "error"
    return "failed" if is_bad else "successful" if is_good else "inconclusive"


@pytest.mark.parametrize(
    ("name", "phases", "failure_limit"),
    [
        ("burn-rate-5m", {5.99: "successful", 6: "failed", math.nan: "inconclusive"}, 1),
        ("burn-rate-alert", {0: "successful", 1: "failed", 2: "failed"}, 0),
        ("engine-restarts", {1: "successful", 2: "failed"}, 0),
        ("users-reactions", {-40: "successful", 0: "successful", 5.69: "successful", 5.7: "failed"}, 0),
    ],
)
def test_a_measurement_takes_the_canary_back(name: str, phases: dict[float, str], failure_limit: int) -> None:
    metric = analysis()[name]
    assert {value: phase(metric, [value]) for value in phases} == phases
    assert phase(metric, []) == "inconclusive", "a query without an answer is no success"
    assert metric.get("failureLimit", 0) == failure_limit
    # The metrics of requests allow equal time without any.
    limits = {each: found["inconclusiveLimit"] for each, found in analysis().items()}
    assert limits["users-reactions"] == limits["burn-rate-alert"] == limits["burn-rate-5m"] > limits["engine-restarts"]


def test_the_alert_of_the_canary_is_of_pods_with_its_label() -> None:
    (group,) = (each for each in load_groups() if any(RECORDED in rule.values() for rule in each["rules"]))
    assert "CompletionCanaryBurn" in {rule.get("alert") for rule in group["rules"]}
    assert RECORDED in query_of(analysis()["burn-rate-alert"])
    canary = one(rendered("regions/us-east"), "Rollout", "completion-server")["spec"]["strategy"]["canary"]
    assert canary["canaryMetadata"]["labels"] == {"track": "canary"}
    assert one(rendered("regions/us-east"), "PodMonitor", "completion-server")["spec"]["podTargetLabels"] == ["track"]


def test_prometheus_may_be_away_for_less_than_a_step() -> None:
    canary = one(rendered("regions/us-east"), "Rollout", "completion-server")["spec"]["strategy"]["canary"]
    pauses = [step["pause"]["duration"] for step in canary["steps"] if "pause" in step]
    shortest = min(int(each.removesuffix("m")) for each in pauses)
    assert {metric["interval"] for metric in analysis().values()} == {"1m"}
    (limit,) = {metric["consecutiveErrorLimit"] for metric in analysis().values()}
    assert DEFAULT_ERROR_LIMIT < limit < shortest - 1


def test_the_queries_name_metrics_that_the_server_has() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    known = {family.name for family in registry.collect()} | OF_APP
    recorded = {rule["record"] for rule in load_rules() if "record" in rule}
    read = [query_of(each) for each in analysis().values()] + [query for query, _ in keda_queries().values()]
    for query in read:
        names = {each.name for each in selectors(query)}
        assert names, query
        assert {each.removesuffix("_total") for each in names - recorded} <= known, query
    results = {each.value for each in SloResult}
    assert set(re.findall(r'result!?="([^"]+)"', "".join(read))) <= results


def test_no_query_of_the_canary_has_an_edge_of_a_histogram() -> None:
    """The budget is configured at the server, and need be no edge of its buckets."""
    assert not [name for name, each in analysis().items() if re.search(r"_bucket|\ble=", query_of(each))]
