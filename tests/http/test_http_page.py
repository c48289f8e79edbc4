"""The page's own paths: its completions with their stages, the figures of the server, and K, which an operator sets."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from completion_server.core.credential import Scope
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.authentication import KnownCallers, verified
from tests.support.http_clients import HTTP, PAGE_ADMIN, HttpAnswer, get, post
from tests.support.server import RunningServer, make_config, run_server

MAX_K = 4
STATUS, SPECULATION = "/admin/status", "/admin/speculation"
PROXY = {"x-forwarded-for": "192.0.2.1"}


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: ("alpha", " beta", "\n"), num_speculative_tokens=MAX_K)


@pytest_asyncio.fixture(scope="module")
async def server() -> AsyncIterator[RunningServer]:
    async with run_server(make_config(HTTP, PAGE_ADMIN), make_engine) as running:
        yield running


async def set_k(server: RunningServer, k: object, headers: dict[str, str] | None = None) -> HttpAnswer:
    """Set K as the page does."""
    origin = {"origin": f"http://{server.ready.http_address}"}
    return await post(server, SPECULATION, {"k": k}, origin | (headers or {}))


async def test_a_request_of_the_page_is_answered_with_its_stages_and_counts(server: RunningServer) -> None:
    options = {"include_usage": True, "include_timings": True}
    body = {"prompt": "x = ", "suffix": "\n", "stop": ["\n"], "stream": True, "stream_options": options}
    *texts, last, done = (await post(server, "/v1/completions", body)).events
    assert "".join(each["choices"][0]["text"] for each in texts) == "alpha beta"
    stages = last["timings"]
    assert stages["total_ms"] >= stages["queue_ms"] + stages["tokenise_ms"] + stages["prefill_ms"] + stages["decode_ms"]
    assert stages["decode_ms"] > 0
    assert done == "[DONE]"
    event = {"type": "select", "completion_id": texts[0]["id"], "choice_index": 0}
    assert (await post(server, "/v1/events", event)).status == 200
    assert server.count("completion_accepted_characters_total") == len("alpha beta")
    status = (await get(server, STATUS)).json
    assert (status["model"], status["answered"], status["live"]) == ("scripted", 1, 0)
    assert status["prompt_tokens"] == last["usage"]["prompt_tokens"] > 0
    plain = await post(server, "/v1/completions", body | {"stream_options": {"include_usage": True}})
    assert "timings" not in plain.text


async def test_an_operator_sets_k_which_the_audit_log_has(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with run_server(make_config(HTTP, PAGE_ADMIN, f"records.audit_file={audit}"), make_engine) as server:
        status = (await get(server, STATUS)).json
        assert (status["k"], status["k_max"], status["k_mode"], status["k_locked"]) == (4, MAX_K, "fixed", "")
        assert (await set_k(server, 1)).json["k"] == 1
        assert (await get(server, STATUS)).json["k"] == 1
        assert (await set_k(server, None)).json["k_mode"] == "auto"
    changes = [each for each in map(json.loads, audit.read_text().splitlines()) if each["kind"] == "admin_change"]
    assert [each["setting"] for each in changes] == ["speculation", "speculation"]
    assert (changes[0]["new"], changes[1]["new"][:4]) == (changes[1]["old"], "auto")


async def test_a_wrong_k_changes_nothing(server: RunningServer) -> None:
    origin = {"origin": f"http://{server.ready.http_address}"}
    for body, fault in (({"k": MAX_K + 1}, "k: K = 5 is over the 4 that"), ({"k": -1}, "k: "), ({}, "k: must")):
        answer = await post(server, SPECULATION, body, origin)
        assert answer.status == 400
        assert answer.json["error"]["message"].startswith(fault)
    assert (await get(server, STATUS)).json["k"] == MAX_K


async def test_no_proxy_and_no_other_site_changes_the_server(server: RunningServer) -> None:
    for headers in (PROXY, {"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example"}):
        assert (await set_k(server, 1, headers)).status == 403
    assert (await post(server, SPECULATION, {"k": 1})).status == 403  # what is no browser sends no origin
    assert (await get(server, STATUS)).json["k"] == MAX_K


async def test_with_authentication_the_token_shows_the_server_and_the_scope_admin_changes_it() -> None:
    scopes = {"feedback": (Scope.FEEDBACK,), "admin": (Scope.COMPLETE, Scope.ADMIN)}
    known = KnownCallers({name: verified(name, *scopes.get(name, ())) for name in ("ann", *scopes)})

    def bearer(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {name}"}

    async with run_server(make_config(HTTP, PAGE_ADMIN), make_engine, known) as server:
        for headers, status in (({}, 401), (bearer("forged"), 401), (bearer("feedback"), 403)):
            assert (await get(server, STATUS, headers)).status == status
            assert (await set_k(server, 1, headers)).status == status
        shown = (await get(server, STATUS, bearer("ann"))).json
        assert "scope admin" in shown["k_locked"]
        assert (await set_k(server, 1, bearer("ann"))).json["error"]["message"] == shown["k_locked"]
        assert (await get(server, STATUS, bearer("admin") | PROXY)).json["k_locked"] == ""
        assert (await post(server, SPECULATION, {"k": 1}, bearer("admin") | PROXY)).json["k"] == 1
        known.revoke("id-of-admin")
        assert (await set_k(server, 2, bearer("admin"))).status == 401
        assert (await get(server, STATUS, bearer("ann"))).json["k"] == 1
