"""The dialects over HTTP, against servers that speak them as the real ones do."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.driving.driver import drive
from loadtest.targets import ClientSettings, Credentials, parse_target
from loadtest.targets.http import HttpTarget
from loadtest.traffic.typed import Trace
from tests.support.server import eventually
from tests.unit.loadtest.typed import PREFIX, trace

HELD_S = 60.0
ANSWERED, EMPTY, REFUSED, BROKEN = range(1, 5)


@dataclass
class Server:
    """Answers the first request of a session, and holds the second after its first text."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_hung_up: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/infill", self.infill)
        return app

    async def complete(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        if "segments" in body:
            if self.holds:
                await self.hold()
            return web.json_response({"id": "cmpl", "choices": [{"index": 0, "text": "hello"}]})
        events = [{"choices": [{"index": 0, "text": text}]} for text in ("hel", "lo")]
        return await self.stream(
            http, [*events, {"choices": [], "usage": {"completion_tokens": 2}}], b"data: [DONE]\n\n"
        )

    async def infill(self, http: web.Request) -> web.StreamResponse:
        self.bodies.append(await http.json())
        events = [{"content": text, "stop": False, "tokens_predicted": 1} for text in ("hel", "lo")]
        return await self.stream(http, [*events, {"content": "", "stop": True, "tokens_predicted": 2}], b"")

    @property
    def holds(self) -> bool:
        return len(self.bodies) == 2

    async def stream(self, http: web.Request, events: list[dict[str, Any]], last: bytes) -> web.StreamResponse:
        holds = self.holds
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(http)
        for event in events:
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if holds:
                await self.hold()
        await answer.write(last)
        return answer

    async def hold(self) -> None:
        try:
            await asyncio.sleep(HELD_S)
        except asyncio.CancelledError:
            self.num_hung_up += 1
            raise


@asynccontextmanager
async def target(uri: str) -> AsyncIterator[tuple[Server, HttpTarget]]:
    """Serve and ask; the HOST of the URI is the server's."""
    server = Server()
    async with TestServer(server.app()) as running:
        spec = parse_target(uri.replace("HOST", f"127.0.0.1:{running.port}"))
        async with HttpTarget(spec, ClientSettings(24)) as found:
            yield server, found


def text_only(made: Trace) -> Trace:
    """Return it without token ids."""
    return made.with_token_ids(iter([()] * (made.num_requests + len(made.sessions))))


PROMPTS: dict[str, dict[str, Any]] = {
    "openai+http://HOST?model=m&fim=<P>{prefix}<S>{suffix}<M>": {
        "model": "m",
        "prompt": f"<P>{PREFIX}<S>\n<M>",
        "max_tokens": 24,
        "stream": True,
    },
    "openai+http://HOST": {"prompt": PREFIX, "suffix": "\n"},
    "llama+http://HOST": {"input_prefix": PREFIX, "input_suffix": "\n", "n_predict": 24, "stream": True},
    'tabby+http://HOST?body={"seed":3}': {
        "language": "python",
        "segments": {"prefix": PREFIX, "suffix": "\n"},
        "seed": 3,
    },
}


@pytest.mark.parametrize("uri", PROMPTS)
async def test_each_dialect_answers_and_is_cancelled_at_the_next_key(uri: str) -> None:
    made = text_only(trace((0.0, 9.0), (0.2, 0.4), (0.5, 9.0), duration_s=0.6))
    async with target(uri) as (server, found):
        run = await drive(found, made, has_lead_in=False)
        await eventually(lambda: bool(server.num_hung_up))
    assert [result.outcome.value for result in run.results] == ["answered", "hung_up", "answered"]
    assert server.bodies[0].items() >= PROMPTS[uri].items()
    assert run.results[0].completion_tokens == (0 if uri.startswith("tabby") else 2)
    assert server.num_hung_up == 1


@pytest.mark.parametrize("uri", ["openai+http://HOST", "llama+http://HOST", "tabby+http://HOST"])
async def test_an_answer_in_another_form_is_an_error(uri: str) -> None:
    async def complete(_http: web.Request) -> web.Response:
        return web.Response(body=b'data: {"strange": 1}\n\n')

    app = web.Application()
    for path in ("/v1/completions", "/infill"):
        app.router.add_post(path, complete)
    async with TestServer(app) as running:
        spec = parse_target(uri.replace("HOST", f"127.0.0.1:{running.port}"))
        async with HttpTarget(spec, ClientSettings()) as found:
            run = await drive(found, trace((0.0, 9.0)), has_lead_in=False)
    assert [result.outcome.value for result in run.results] == ["error"]
    assert "can't be read" in run.results[0].error


async def test_requests_end_as_the_server_says() -> None:
    bodies: list[dict[str, Any]] = []

    async def complete(http: web.Request) -> web.Response:
        bodies.append(await http.json())
        (kind,) = bodies[-1]["prompt"]
        if kind == REFUSED:
            return web.Response(status=400, text="a bad prompt")
        if kind == BROKEN:
            return web.Response(body=b'data: {"error": {"message": "it broke"}}\n\n')
        text, usage = "pass" if kind == ANSWERED else " ", {"completion_tokens": 3}
        lines = ({"choices": [{"text": text}]}, {"choices": [], "usage": usage})
        return web.Response(body=b"".join(b"data: %s\n\n" % json.dumps(line).encode() for line in lines))

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    kinds = (ANSWERED, EMPTY, REFUSED, BROKEN)
    made = trace(*((0.02 * place, 5.0) for place in range(len(kinds))))
    made = made.with_token_ids(iter([(ANSWERED,), *((kind,) for kind in kinds)]))
    async with TestServer(app) as running:
        spec = parse_target(f"openai+http://127.0.0.1:{running.port}")
        async with HttpTarget(spec, ClientSettings(24), {"stop_token_ids": [7]}) as found:
            run = await drive(found, made)
    assert [result.outcome.value for result in run.results] == ["answered", "empty", "error", "error"]
    assert [result.completion_tokens for result in run.results] == [3, 3, 0, 0]
    assert run.results[2].error == "a bad prompt"
    assert "it broke" in run.results[3].error
    assert (bodies[0]["max_tokens"], bodies[1]["max_tokens"], bodies[1]["stop_token_ids"]) == (1, 24, [7])


async def test_stragglers_are_cancelled_and_no_server_is_an_error() -> None:
    async with target("llama+http://HOST") as (server, found):
        made = text_only(trace((0.0, 9.0), (0.1, 9.0), duration_s=0.2))
        run = await drive(found, made, drain_s=0.05, has_lead_in=False)
        await eventually(lambda: server.num_hung_up == 1)
    assert [result.outcome.value for result in run.results] == ["answered", "unanswered"]
    async with HttpTarget(parse_target("llama+http://127.0.0.1:1"), ClientSettings()) as nobody:
        run = await drive(nobody, trace((0.0, 9.0)), has_lead_in=False)
    assert [result.outcome.value for result in run.results] == ["error"]


async def test_a_request_says_how_many_tokens_it_wants() -> None:
    made = trace((0.0, 9.0))
    (session,) = made.sessions
    requests = (replace(session.requests[0], max_tokens=5),)
    async with target("llama+http://HOST") as (server, found):
        await drive(found, replace(made, sessions=(replace(session, requests=requests),)), has_lead_in=False)
    assert server.bodies[0]["n_predict"] == 5


async def test_a_request_on_a_connection_that_the_server_closes_is_sent_again() -> None:
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        while await reader.readuntil(b"\r\n\r\n"):
            connections[-1] += 1
            if len(connections) == 1 and connections[-1] == 2:
                break  # as servers do after a number of requests, or after some idle seconds
            body = b'data: {"content": "hello", "stop": true, "tokens_predicted": 1}\n\n'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made = text_only(trace((0.0, 9.0), (0.3, 9.0), duration_s=0.5))
    async with server, HttpTarget(parse_target(f"llama+http://127.0.0.1:{port}"), ClientSettings(24)) as found:
        run = await drive(found, made, has_lead_in=False)
    assert [result.outcome.value for result in run.results] == ["answered", "answered"]
    assert connections == [2, 1]


async def test_users_present_their_tokens_and_a_refused_one_is_not_sent_in_a_loop(tmp_path: Path) -> None:
    presented: list[str] = []
    tokens = tmp_path / "tokens"
    await asyncio.to_thread(tokens.write_text, "ada\nbad\n")

    async def infill(http: web.Request) -> web.Response:
        presented.append(http.headers["Authorization"])
        if presented[-1] != "Bearer ada":
            return web.Response(status=401, text="it is unknown")
        return web.Response(body=b'data: {"content": "hello", "stop": true, "tokens_predicted": 1}\n\n')

    app = web.Application()
    app.router.add_post("/infill", infill)
    async with TestServer(app) as running:
        spec = parse_target(f"llama+http://127.0.0.1:{running.port}")
        spec = replace(spec, credentials=Credentials(user_tokens=tokens))
        async with HttpTarget(spec, ClientSettings()) as found:
            made = text_only(trace((0.0, 5.0), (0.1, 5.0), (0.2, 5.0), num_sessions=2))
            run = await drive(found, made, has_lead_in=False)
    assert sorted(result.outcome.value for result in run.results) == ["answered"] * 3 + ["error"] * 3
    assert sorted(presented) == ["Bearer ada"] * 3 + ["Bearer bad"]
    assert {result.error for result in run.results if result.error} == {
        "it is unknown", "the server refused the token of the program's own settings: it is unknown",
    }  # fmt: skip
