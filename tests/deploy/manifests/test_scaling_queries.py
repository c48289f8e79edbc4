"""The queries by which a canary is taken back and KEDA adds servers, evaluated by Prometheus's own promtool."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from completion_server.ops.metrics import Metrics
from completion_server.ops.quality import SloResult
from tests.deploy.manifests.targets import EAST, rendered
from tests.support.kustomize import Object, one
from tests.support.rules import RULE_FILES, RuleTest, expression, load_groups, load_rules, run_tests, selectors

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


def analysis() -> dict[str, Object]:
    """Return the metrics of the canary's analysis by their names."""
    template = one(rendered(EAST), "AnalysisTemplate", "completion-server")
    return {each["name"]: each for each in template["spec"]["metrics"]}


def query_of(metric: Object) -> str:
    return str(metric["provider"]["prometheus"]["query"]).replace("{{args.hash}}", HASH)


def canary_strategy() -> Object:
    return dict(one(rendered(EAST), "Rollout", "completion-server")["spec"]["strategy"]["canary"])


def triggers() -> dict[str, Object]:
    """Return the metadata of KEDA's triggers by their names."""
    spec = one(rendered(EAST), "ScaledObject", "completion-server")["spec"]
    return {each["name"]: each["metadata"] for each in spec["triggers"]}


def slo_series(rates: Load, **labels: str) -> dict[str, str]:
    """Return the counters of the objective under a load by result, as a server exports them, with further labels."""
    more = "".join(f', {label}="{value}"' for label, value in labels.items())
    name = f'completion_slo_requests_total{{region="us-east", result="%s"{more}}}'
    return {name % result: f"0+{60 * rate:g}x60" for result, rate in rates.items()}


def of_pods(canary: Load, stable: Load) -> dict[str, str]:
    """Return the counters of two pods, with the labels that the scrape adds."""
    namespace = {"namespace": "completion"}
    return slo_series(canary, **namespace, pod=CANARY) | slo_series(stable, **namespace, pod=STABLE)


def queue_series(num_per_s: float) -> dict[str, str]:
    """Return the histogram of the wait for a slot: nine of ten within 20 ms, all within 40 ms."""
    name = 'completion_stage_seconds_bucket{region="us-east", stage="queue", le="%s"}'
    shares = {"0.02": 0.9, "0.04": 1.0, "+Inf": 1.0}
    return {name % le: f"0+{60 * num_per_s * share:g}x60" for le, share in shares.items()}


BURNS: dict[str, tuple[Load, Load, float | None]] = {
    "all in time": ({"in_time": 8, "late": 0}, {"in_time": 1, "late": 50}, 0),
    "as allowed": ({"in_time": 19, "late": 1}, {"in_time": 50}, 1),
    "half late": ({"in_time": 4, "late": 4}, {"in_time": 50}, 10),
    "half shed": ({"in_time": 4, "shed": 4}, {"in_time": 50}, 10),
    "half fail": ({"in_time": 4, "failed": 4}, {"in_time": 50}, 10),
    "nothing is answered": ({"in_time": 0, "refused": 4}, {"in_time": 50}, 20),
    "no requests, which prove nothing": ({"in_time": 0, "late": 0}, {"in_time": 50}, None),
}
"""The canary's own burn rates, beside stable pods that do otherwise."""
ALERT_RESULTS: dict[str, tuple[Load, tuple[str, ...], float | None]] = {
    "the canary is late": ({"in_time": 4, "late": 4}, RULE_FILES, 1),
    "the canary is in time": ({"in_time": 8}, RULE_FILES, 0),
    "the alert is not loaded": ({"in_time": 4, "late": 4}, ("recording-rules.yaml",), None),
    "no rule is loaded": ({"in_time": 4, "late": 4}, (), None),
    "the canary is not scraped": ({}, RULE_FILES, None),
    "the canary has no requests": ({"in_time": 0, "late": 0}, RULE_FILES, None),
    "the canary has few requests": ({"in_time": 0.02}, RULE_FILES, 0),
}
"""An alert that does not fire is evidence only with requests and rules."""


def cases() -> Iterator[RuleTest]:
    queries = {name: query_of(each) for name, each in analysis().items()}
    for about, (canary, stable, burn) in BURNS.items():
        yield expression(about, of_pods(canary, stable), f"round({queries['burn-rate-5m']}, 0.001)", burn)
    for about, (canary, files, value) in ALERT_RESULTS.items():
        series = slo_series(canary, track="canary") | slo_series({"in_time": 50, "late": 0}, track="stable")
        yield expression(about, series, queries["burn-rate-alert"], value, files)
    counter = f'completion_engine_restarts_total{{namespace="completion", pod="{CANARY}"}}'
    restarts = queries["engine-restarts"]
    yield expression("three restarts", {counter: "0x50 1 2 3 3x7"}, f"({restarts}) > bool 2", 1)
    yield expression("no restart", {counter: "0x60"}, restarts, 0)
    yield expression("no engine", {}, restarts, None)
    queue, shed = (triggers()[name]["query"] for name in ("queue-wait", "shed-share"))
    yield expression("requests wait", queue_series(100), f"round({queue})", 30)
    yield expression("requests are shed", slo_series({"in_time": 96, "shed": 4}), f"round({shed}, 0.001)", 4)
    for query in (queue, shed):
        yield expression("no requests", queue_series(0) | slo_series({"in_time": 0, "shed": 0}), query, 0)
        yield expression("no servers, in a drained region", {}, query, 0)


@pytest.mark.full
def test_queries_answer(tmp_path: Path) -> None:
    assert run_tests(list(cases()), tmp_path) == ""


def phase(metric: Object, result: list[float]) -> str:
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
    assert canary_strategy()["canaryMetadata"]["labels"] == {"track": "canary"}
    assert one(rendered(EAST), "PodMonitor", "completion-server")["spec"]["podTargetLabels"] == ["track"]


def test_prometheus_may_be_away_for_less_than_a_step() -> None:
    pauses = [step["pause"]["duration"] for step in canary_strategy()["steps"] if "pause" in step]
    assert {metric["interval"] for metric in analysis().values()} == {"1m"}
    (limit,) = {metric["consecutiveErrorLimit"] for metric in analysis().values()}
    assert DEFAULT_ERROR_LIMIT < limit < min(int(each.removesuffix("m")) for each in pauses) - 1


def test_the_queries_name_metrics_that_the_server_has_and_no_edge_of_a_histogram() -> None:
    """The budget is configured at the server, and need be no edge of its buckets."""
    registry = CollectorRegistry()
    Metrics(registry)
    known: Any = {family.name for family in registry.collect()} | OF_APP
    known |= {f"{name}_bucket" for name in known} | {rule["record"] for rule in load_rules() if "record" in rule}
    of_canary = [query_of(each) for each in analysis().values()]
    read = [*of_canary, *(each["query"] for each in triggers().values())]
    for query in read:
        names = {each.name.removesuffix("_total") for each in selectors(query)}
        assert names, query
        assert names <= known, query
    assert set(re.findall(r'result!?="([^"]+)"', "".join(read))) <= {each.value for each in SloResult}
    assert not re.search(r"_bucket|\ble=", "".join(of_canary))


def test_kedas_thresholds_are_between_the_figures_of_quiet_and_of_trouble() -> None:
    assert {name: float(each["threshold"]) for name, each in triggers().items()} == {"queue-wait": 30, "shed-share": 2}
    assert {each["ignoreNullValues"] for each in triggers().values()} == {"false"}, "no figure is an error"
