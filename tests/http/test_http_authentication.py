"""With authentication on: what each dialect needs, how it refuses, and whose request it is."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from completion_server.core.credential import Scope
from completion_server.core.errors import UnavailableError
from completion_server.core.request import Caller
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.authentication import KnownCallers, verified
from tests.support.http_clients import (
    HTTP,
    HttpAnswer,
    broken_off,
    first_event,
    get,
    head,
    post,
    raw_connection,
    streaming,
)
from tests.support.server import (
    ENDLESS,
    RunningServer,
    endless_config,
    endless_engine,
    eventually,
    make_config,
    run_server,
)
from tests.support.waits import named_limit

WORDS = ("alpha", "\n")
BODY = {"prompt": "x"}
"""A request to each path but Tabby's."""
OPENAI, FIM, INFILL, COMPLETION = "/v1/completions", "/v1/fim/completions", "/infill", "/completion"
EVENTS = "/v1/events"
LLAMA = (INFILL, COMPLETION, "/props")
POSTS = (OPENAI, FIM, INFILL, COMPLETION, EVENTS)
DOCUMENTS = ("/v1/models", "/props", "/v1beta/server_setting")
PUBLIC = ("/health", "/v1/health", "/", "/playground/main.js")


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: WORDS)


def known_callers() -> KnownCallers:
    return KnownCallers(
        {
            "ann": verified("ann"),
            "ann-2": verified("ann", credential="another"),
            "bob": verified("bob"),
            "complete": verified("carl", Scope.COMPLETE),
            "admin": verified("dora", Scope.ADMIN),
        }
    )


@pytest_asyncio.fixture(scope="module")
async def server() -> AsyncIterator[RunningServer]:
    async with run_server(make_config(HTTP), make_engine, known_callers()) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def asked(server: RunningServer, path: str, headers: dict[str, str]) -> HttpAnswer:
    return await (get(server, path, headers) if path in DOCUMENTS else post(server, path, BODY, headers))


def error_type(path: str, answer: HttpAnswer) -> str:
    """Return the type of an error, whose body has the form of its path's dialect."""
    error = answer.json["error"]
    own = {"code", "message", "type"} if path in LLAMA else {"code", "message", "type", "param"}
    assert set(error) == own
    assert error["code"] == (answer.status if path in LLAMA else None)
    return str(error["type"])


@pytest.mark.parametrize("path", [*POSTS, *DOCUMENTS])
async def test_every_dialect_needs_a_token_and_its_scope(server: RunningServer, path: str) -> None:
    wrong: tuple[dict[str, str], ...] = ({}, {"x-user-id": "ann"}, {"authorization": "Basic ann"})
    for headers in (*wrong, bearer("forged"), {"x-api-key": "forged"}):
        refused = await asked(server, path, headers)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert error_type(path, refused) == "authentication_error"
        assert "forged" not in refused.text
    lacking = await asked(server, path, bearer("complete" if path == EVENTS else "admin"))
    assert (lacking.status, error_type(path, lacking)) == (403, "permission_error")
    assert "www-authenticate" not in lacking.headers
    for headers in (bearer("ann"), {"x-api-key": "ann"}):
        status = (await asked(server, path, headers)).status
        assert status == (400 if path == EVENTS else 200)  # the event names nothing


async def test_health_and_the_files_of_the_page_need_none(server: RunningServer) -> None:
    for path in PUBLIC:
        assert (await get(server, path)).status == (await get(server, path, bearer("forged"))).status == 200


async def test_the_openai_package_tells_a_refused_token(server: RunningServer) -> None:
    base_url = f"http://{server.ready.http_address}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ann", max_retries=0, timeout=30) as client:
        answer = await client.completions.create(model="", prompt="x")
        assert answer.choices[0].text == "alpha"
        with pytest.raises(openai.AuthenticationError, match="unknown or has expired"):
            await client.with_options(api_key="forged").completions.create(model="", prompt="x")
        with pytest.raises(openai.PermissionDeniedError, match="lacks the scope complete"):
            await client.with_options(api_key="admin").completions.create(model="", prompt="x")


async def test_the_user_is_the_tokens_and_not_the_headers(server: RunningServer) -> None:
    """Tabby's feedback is taken from the user of its completion alone."""
    claims = {"x-user-id": "bob", "x-tenant-id": "other"}
    body = {"segments": {"prefix": "x"}, "user": "bob"}
    completion = (await post(server, OPENAI, body, bearer("ann") | claims)).json
    event = {"type": "select", "completion_id": completion["id"]}
    assert (await post(server, EVENTS, event, bearer("bob") | claims)).status == 400
    assert (await post(server, EVENTS, event, bearer("ann-2"))).status == 200  # another token of the same user
    assert server.count("completion_feedback_total", kind="accepted") == 1


def endless() -> ScriptedEngine:
    return endless_engine(lambda _request: (f" w{i}" for i in range(ENDLESS)), ServiceTimes(decode_base_s=0.01))


async def test_a_revoked_token_ends_its_running_answers_and_is_refused() -> None:
    known = known_callers()
    body = BODY | {"max_tokens": ENDLESS}
    async with run_server(endless_config(HTTP), endless, known) as server:
        asking = asyncio.create_task(post(server, OPENAI, body, bearer("bob")))
        await eventually(lambda: server.count("completion_running_requests") == 1)
        async with streaming(server, OPENAI, body, bearer("ann")) as connection:
            await first_event(connection)
            for name in ("ann", "bob"):
                known.revoke(f"id-of-{name}")
            async with named_limit(5.0, "the end of the answers"):
                answer = await asking
                *_texts, last = await broken_off(connection)
        assert (answer.status, answer.json["error"]["message"]) == (401, "key id-of-bob: was revoked")
        assert last["error"]["message"] == "key id-of-ann: was revoked"
        assert (await asked(server, "/v1/models", bearer("ann"))).status == 401
        assert (await asked(server, "/v1/models", bearer("ann-2"))).status == 200


async def test_a_client_that_still_writes_gets_the_refusal(server: RunningServer) -> None:
    body = b'{"prompt":"' + b"x" * 500_000 + b'"}'
    async with raw_connection(server) as connection:
        await connection.send(head(INFILL, f"content-length: {len(body)}") + body[:1000])
        await connection.send(body[1000:])
        assert await connection.status() == 401


class Unreachable(KnownCallers):
    """An issuer whose keys were never fetched."""

    async def authenticate(self, _token: str, _certificate: bytes) -> Caller:
        raise UnavailableError("the issuer's keys were not fetched yet", retry_after_ms=2000)


@pytest.mark.parametrize("path", [INFILL, "/v1/models"])
async def test_without_the_issuers_keys_callers_are_told_to_retry(path: str) -> None:
    async with run_server(make_config(HTTP), make_engine, Unreachable()) as server:
        answer = await asked(server, path, bearer("ann"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert (await get(server, "/health")).status == 200
