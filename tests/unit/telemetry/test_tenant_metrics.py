import pytest
from prometheus_client import CollectorRegistry

from completion_server.config import load_config
from completion_server.core import events
from completion_server.core.errors import ConfigError
from completion_server.core.events import Marks
from completion_server.core.outcome import End, FinishReason, Outcome, Usage
from completion_server.core.request import Caller, Request
from completion_server.telemetry.metrics import Metrics

DONE = End(Outcome(FinishReason.STOP), Usage(100, 80, 5))


def ended(caller: Caller, end: End = DONE) -> events.RequestEnded:
    request = Request("r", caller, 1, "", "", "", "", 8, received_at=0.0)
    return events.RequestEnded(request, end, Marks(0.0, first_output=0.12, ended=0.2))


def requests_of(registry: CollectorRegistry, tenant: str) -> float | None:
    return registry.get_sample_value("completion_tenant_requests_total", {"tenant": tenant, "outcome": "stop"})


def test_configured_tenants_are_counted_by_name_and_all_others_together() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, tenants=("acme", "globex"))
    metrics.handle(ended(Caller("u", "s", tenant="acme", is_verified=True)))
    for other in (
        Caller("u", "s", tenant="initech", is_verified=True),
        Caller("u", "s"),
        Caller("u", "s", tenant="acme"),  # anybody may say so
    ):
        metrics.handle(ended(other))
    assert (requests_of(registry, "acme"), requests_of(registry, "other")) == (1, 3)
    assert requests_of(registry, "globex") == 0  # known from the start, so that a rate sees the first request
    assert requests_of(registry, "initech") is None
    labels = {"tenant": "acme", "le": "0.15"}
    assert registry.get_sample_value("completion_tenant_ttft_seconds_bucket", labels) == 1
    for kind, count in (("prompt", 100), ("cached_prompt", 80), ("completion", 5)):
        assert registry.get_sample_value("completion_tenant_tokens_total", {"tenant": "acme", "kind": kind}) == count


def test_tokens_of_a_shared_generation_count_once() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, tenants=("acme",))
    shared = End(Outcome(FinishReason.STOP), Usage(100, 80, 5, is_shared=True))
    metrics.handle(ended(Caller("u", "s", tenant="acme", is_verified=True), shared))
    labels = {"tenant": "acme", "kind": "completion"}
    assert registry.get_sample_value("completion_tenant_tokens_total", labels) == 0
    assert requests_of(registry, "acme") == 1


def test_the_tokens_of_all_tenants_are_those_of_the_server() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, tenants=("acme",))
    superseded = End(Outcome(FinishReason.SUPERSEDED), Usage(1000, 0, 0))  # without output: the cached share is unknown
    for end in (DONE, superseded):
        metrics.handle(ended(Caller("u", "s", tenant="acme", is_verified=True), end))
    for kind, count in (("prompt", 100), ("cached_prompt", 80), ("completion", 5)):
        assert registry.get_sample_value("completion_tokens_total", {"kind": kind}) == count
        assert registry.get_sample_value("completion_tenant_tokens_total", {"tenant": "acme", "kind": kind}) == count


def test_without_configured_tenants_there_are_no_series_by_tenant() -> None:
    registry = CollectorRegistry()
    Metrics(registry).handle(ended(Caller("u", "s", tenant="acme", is_verified=True)))
    assert not [metric.name for metric in registry.collect() if "tenant" in metric.name]


@pytest.mark.parametrize(
    ("tenants", "fault"),
    [
        ('["other"]', "'other' stands for all others"),
        ('["acme", "acme"]', "'acme' is there twice"),
        ('[""]', "1 to 64 printable characters, got ''"),
        (str([f"t{number}" for number in range(65)]).replace("'", '"'), "at most 64 names, got 65"),
    ],
)
def test_tenants_that_can_not_be_labels_are_refused(tenants: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"metrics.*tenants.*{fault}"):
        load_config(None, (f"metrics.tenants={tenants}",), {})
