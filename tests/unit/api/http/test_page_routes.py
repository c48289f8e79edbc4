"""The page's files, who may change the server from it, and what it counts."""

import pytest
from prometheus_client import CollectorRegistry

from completion_server.api.http import page
from completion_server.api.http.page import closed_reason, figures, refusal_reason
from completion_server.core.events import Marks, RequestEnded
from completion_server.core.outcome import End, FinishReason, Outcome, Usage
from completion_server.core.request import Caller, Request
from completion_server.ops.metrics import Metrics
from completion_server.requests.gate import Readiness
from completion_server.requests.limits.settings import ServerSettings, TlsSettings
from completion_server.requests.service import LoadSnapshot

LOCAL = {"host": "127.0.0.1:8012"}
LOAD = LoadSnapshot(Readiness.READY, 3, 2, 1, 1, 8, 32, "")


def test_each_page_has_a_nonce_of_its_own_and_a_policy_without_exceptions() -> None:
    (first, headers), (second, _) = page.page(), page.page()
    policy = headers["content-security-policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert len(nonce) > 20
    assert f'content="{nonce}"'.encode() in first
    assert first != second
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert b"<style" not in first
    assert b" style=" not in first
    assert first.count(b"<script") == first.count(b'<script type="module" src=')


def test_the_page_uses_each_of_its_files() -> None:
    for name in page.NAMES:
        assert page.content(name)
        assert f"/playground/{name}".encode() in page.page()[0]


@pytest.mark.parametrize(
    ("fields", "trusts_names", "reason"),
    [
        ({}, False, ""),
        ({"http_admin": False}, False, "server.http_admin"),
        ({"admin_listen": ""}, False, "no admin listener"),
        ({"admin_listen": "unix:/run/admin"}, False, "admin listener"),
        ({"admin_tls": TlsSettings("server.pem", "server.key", "ca.pem")}, False, "admin listener"),
        ({}, True, "proxy"),
    ],
)
def test_an_operator_is_who_could_use_the_admin_listener(
    fields: dict[str, object], trusts_names: bool, reason: str
) -> None:
    found = closed_reason(ServerSettings(**{"http_admin": True} | fields), trusts_names=trusts_names)
    assert reason in found
    assert bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("client", "headers", "is_operator"),
    [
        ("127.0.0.1", LOCAL, True),
        ("::1", {"host": "[::1]:8012"}, True),
        ("127.0.0.1", {"host": "localhost"}, True),
        ("127.0.0.1", {"host": "[::1]"}, True),
        ("192.0.2.1", LOCAL, False),
        ("2001:db8::1", LOCAL, False),
        ("", LOCAL, False),
        ("127.0.0.1", {"host": "completions.example:8012"}, False),
        ("127.0.0.1", {}, False),
        ("127.0.0.1", LOCAL | {"x-forwarded-for": "192.0.2.1"}, False),
        ("127.0.0.1", LOCAL | {"forwarded": "for=192.0.2.1"}, False),
    ],
)
def test_only_a_browser_on_the_servers_machine_is_an_operator(
    client: str, headers: dict[str, str], *, is_operator: bool
) -> None:
    assert (refusal_reason(client, headers) == "") is is_operator


def test_ended_requests_and_their_tokens_are_counted() -> None:
    metrics, request = Metrics(CollectorRegistry()), Request("r", Caller("", "s"), 1, "", "", "x", "", 8, 0.0)
    for reason, usage, first_output in (
        (FinishReason.STOP, Usage(100, 64, 5), 1.02),
        (FinishReason.LENGTH, Usage(100, 100, 5, is_shared=True), 1.04),
        (FinishReason.SUPERSEDED, Usage(50, 10), None),
        (FinishReason.SHED, Usage(), None),
        (FinishReason.ERROR, Usage(), None),
    ):
        metrics.handle(RequestEnded(request, End(Outcome(reason), usage), Marks(1.0, first_output=first_output)))
    found = figures(metrics, LOAD)
    assert (found["answered"], found["superseded"], found["shed"], found["cancelled"]) == (2, 1, 1, 0)
    assert (found["prompt_tokens"], found["cached_tokens"]) == (100, 64)
    assert found["ttft_ms"] == pytest.approx(30)
    assert (found["live"], found["queued"], found["running"], found["slots"], found["sessions"]) == (2, 1, 1, 8, 3)
