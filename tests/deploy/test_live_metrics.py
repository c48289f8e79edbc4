"""A live server's metrics in a real Prometheus: the rules read what it exports, exemplars link to its traces."""

import re
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client import Endpoint, Token
from completion_server.client.probe_command import NEAREST, ProbeMetrics
from completion_server.client.probe_command import ask as ask_as_probe
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.authentication import KnownCallers, verified
from tests.support.background import background_loop
from tests.support.certificates import make_identity_in
from tests.support.models import ROOT
from tests.support.otlp import Receiver, grpc_receiver
from tests.support.prometheus import Prometheus, Target, require_prometheus, running_prometheus
from tests.support.redis_servers import free_port, wait_until
from tests.support.rules import load_rules, selectors, write_plain_rules
from tests.support.runbooks import asked
from tests.support.server import RunningServer, ask, make_config, request, run_server

pytestmark = pytest.mark.full

_PATIENCE_S = 60.0
"""For a machine with much other work."""
K = 3
USER = (("authorization", "Bearer ann"),)
"""A single call without a user shares no cached completion with a later one."""
CALLERS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SCRAPED_LABELS = {"track", "hash", "instance", "job", "pod"}
"""Labels that no server exports: the scrape adds them."""


def make_engine() -> ScriptedEngine:
    """Return an engine that takes at least 0.2 s, the budget, for a slow prompt, and a few ms for a short one."""
    times = ServiceTimes(prefill_per_token_s=4e-4)
    return ScriptedEngine(times=times, num_speculative_tokens=K, max_num_seqs=16, max_num_batched_tokens=8192)


@dataclass
class Site:
    """A server that editors have used, and the Prometheus that scraped it meanwhile."""

    server: RunningServer
    prometheus: Prometheus
    receiver: Receiver
    samples: list[Sample]
    """The server's page and a probe's, by samples."""


async def type_for_a_while(stub: CompletionServiceStub, begin: int) -> None:
    """Accept 4 of 10 fast completions, of which 2 survive, and 4 of 5 slow ones. One more is answered twice.

    The other texts are unique in each line: the server's prompt begins at a later line of a long text, and the prefix
    cache has what begins alike. That one differs from the last time: the cache keeps the last eight completions at one
    place.
    """
    same = f"same_{begin} = "
    trace = f"00-{CALLERS_TRACE}-00f067aa0ba902b7-01"
    fast = [(f"fast_{begin + at} = ", at < 4, at < 2, "") for at in range(10)]
    slow = [
        ("\n".join(f"v_{begin + at} = compute({n})" for n in range(80)) + "\nslow = ", at > 0, False, "")
        for at in range(5)
    ]
    for at, (prefix, is_accepted, survives, parent) in enumerate(
        [*fast, *slow, (same, False, False, trace), (same, False, False, "")], begin
    ):
        answer = await ask(stub, request(prefix, sequence=at, traceparent=parent), metadata=USER)
        assert answer.text, answer
        kinds: list[dict[str, Any]] = [{"kind": pb.FEEDBACK_KIND_SHOWN}]
        if is_accepted:
            kinds.append({"kind": pb.FEEDBACK_KIND_ACCEPTED, "accepted_characters": 1})
        if survives:
            kinds.append({"kind": pb.FEEDBACK_KIND_SURVIVED, "survived_after_s": 30, "survived_share": 1.0})
        for fields in kinds:
            report = pb.ReportFeedbackRequest(session_id="s", sequence=at, **fields)
            await stub.ReportFeedback(report, timeout=10, metadata=USER)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require_prometheus()
    folder = tmp_path_factory.mktemp("site")
    admin = make_identity_in(folder, "admin")
    with ExitStack() as stack:
        receiver = stack.enter_context(grpc_receiver())
        background = stack.enter_context(background_loop())
        config = make_config(
            "server.region=us-east", "cache.enabled=true", "engine.warm_up=false",
            "admission.user_requests_per_s=1000", "admission.user_tokens_per_s=1000000",
            f"server.admin_tls.certificate={admin.certificate}", f"server.admin_tls.key={admin.key}",
            f"auth.keys_file={folder}/keys.json",
            f"redis.addresses=['127.0.0.1:{free_port()}']", f"records.usage_file={folder}/usage.jsonl",
            f"traces.endpoint={receiver.address}", "traces.sample_ratio=0",
        )  # fmt: skip
        servers, known = AsyncExitStack(), KnownCallers({"ann": verified("ann")})
        stack.callback(lambda: background.run(servers.aclose()))
        server = background.run(servers.enter_async_context(run_server(config, make_engine, known)), _PATIENCE_S)
        target = Target(server.ready.metrics_address)
        rules = write_plain_rules(folder, interval="1s")
        prometheus = stack.enter_context(running_prometheus(target, rules=rules))
        for num_rounds in (1, 2):  # all series exist after the first
            background.run(type_for_a_while(server.stub, 100 * num_rounds), _PATIENCE_S)
            shown = f'completion_quality_total{{event="shown",cache="local"}} == {num_rounds}'
            prometheus.wait_for(shown, _PATIENCE_S)
        probed = background.run(probe(server.ready.address, admin.certificate), _PATIENCE_S)
        with urllib.request.urlopen(f"http://{server.ready.metrics_address}/metrics", timeout=10) as page:
            families = [*text_string_to_metric_families(page.read().decode()), *probed.collect()]
        yield Site(server, prometheus, receiver, [sample for family in families for sample in family.samples])


async def probe(address: str, certificate: Path) -> CollectorRegistry:
    """Return the metrics of a probe with a certificate that has asked the server, also as the nearest of several."""
    registry, token = CollectorRegistry(), Token.of_text("ann")
    metrics = ProbeMetrics(registry, (address, NEAREST), certificate)
    for server in (address, NEAREST):
        seen = await ask_as_probe((Endpoint(address, token=token),), "probe-0", 0, _PATIENCE_S)
        assert (seen.result, seen.address) == ("answered", address), seen
        metrics.add(server, seen)
    return registry


def test_latency_against_acceptance_is_one_query(site: Site) -> None:
    def table(query: str) -> dict[str, float]:
        return {each.labels["ttft"]: each.value for each in site.prometheus.query(query)}

    def grown(event: str) -> dict[str, float]:
        series = f'completion_quality_total{{event="{event}"}}'
        return table(f"sum by (ttft) ({series} - min_over_time({series}[1h]))")

    shown, accepted = grown("shown"), grown("accepted")
    # `increase` looks as far before the first sample as a counter can have been at 0, so not at all for one that was.
    known = table('sum by (ttft) (min_over_time(completion_quality_total{event="accepted"}[1h])) > 0')
    expected = {ttft: accepted[ttft] / shown[ttft] for ttft in known if shown[ttft]}
    text = (ROOT / "docs" / "observability.md").read_text()
    documented = re.search(r"Acceptance by TTFT.*?```promql\n(.*?)```", text, re.DOTALL)
    assert documented
    found = {ttft: value for ttft, value in table(documented[1]).items() if ttft in expected}
    assert found == pytest.approx(expected)
    assert len(found) >= 2, "the fast and the slow ones are in one row"


def test_exemplars_in_prometheus_name_the_traces_of_callers_and_of_late_requests(site: Site) -> None:
    for metric in ("completion_ttft_seconds_bucket", "completion_stage_seconds_bucket"):
        found = site.prometheus.get("query_exemplars", query=metric, start="0", end="9999999999")
        linked = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
        assert linked > {CALLERS_TRACE}, metric
        wait_until(lambda ids=linked: ids <= {span.trace_id for span in site.receiver.spans}, _PATIENCE_S)


@pytest.mark.parametrize("rule", load_rules(), ids=lambda rule: rule.get("record") or rule["alert"])
def test_each_rule_reads_metrics_and_labels_that_a_server_exports(site: Site, rule: dict[str, Any]) -> None:
    labels: set[str] = set()
    for selector in selectors(rule["expr"]):
        if ":" in selector.name:  # recorded: the name tells its labels
            labels |= set(selector.name.partition(":")[0].split("_"))
            continue
        used = {name for name, _, _ in selector.matchers} - SCRAPED_LABELS
        exact = {name: value for name, operator, value in selector.matchers if operator == "=" and name in used}
        of_name = (sample.labels for sample in site.samples if sample.name == selector.name)
        found = [each for each in of_name if used <= each.keys() and exact.items() <= each.items()]
        assert found, f"a server exports no {selector}"
        labels |= found[0].keys()
    grouped = {name.strip() for names in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for name in names.split(",")}
    assert not labels or grouped <= labels | SCRAPED_LABELS  # without labels it is about what others export


def test_prometheus_evaluates_all_rules_and_fills_in_the_annotations(site: Site) -> None:
    def rules() -> dict[str, dict[str, Any]]:
        return {rule["name"]: rule for group in site.prometheus.get("rules")["groups"] for rule in group["rules"]}

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules().values()), _PATIENCE_S)
    assert rules().keys() == {rule.get("record") or rule["alert"] for rule in load_rules()}
    (alert,) = rules()["CompletionRedisUnavailable"]["alerts"]  # no Redis runs
    assert alert["labels"]["region"] == "us-east"
    assert site.server.ready.metrics_address in alert["annotations"]["description"]
    texts = [each["annotations"] for rule in rules().values() for each in rule.get("alerts", ())]
    assert "error expanding" not in str(texts)
    (late,) = site.prometheus.wait_for("region:completion_slo_errors:ratio_rate5m", _PATIENCE_S)
    assert late.labels["region"] == "us-east"
    assert 0 < late.value < 1  # the slow ones
    assert site.prometheus.wait_for("region:completion_queue_seconds:p95_rate1m", _PATIENCE_S)


def documented_queries() -> Iterator[str]:
    """Yield the queries of the runbooks and of docs/observability.md: the blocks, and the code within lines."""
    text = "".join((ROOT / "docs" / name).read_text() for name in ("runbooks.md", "observability.md"))
    yield from re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    yield from asked()
    for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        is_query = re.match(r"(sum|count|histogram_quantile|region\w*:|completion_|up\{)", code)
        if is_query and not re.search(r"\{[^=]*\}", code):
            yield " ".join(code.split())


def test_prometheus_takes_each_query_of_the_documents_and_knows_its_metrics(site: Site) -> None:
    exported = {sample.name for sample in site.samples}
    queries = list(documented_queries())
    assert len(queries) > 20
    for query in queries:
        site.prometheus.query(query)
        # A histogram's own name has no series: it is known only where it is the whole query, as the metric's name.
        if f"{query}_bucket" not in exported:
            assert {each.name for each in selectors(query) if ":" not in each.name} <= exported, query
