"""The dialects over HTTP, against servers that speak them as the real ones do."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.driving.driver import Run, drive
from loadtest.targets import ClientSettings, Credentials, TargetError, parse_target
from loadtest.targets.http import HttpTarget
from loadtest.traffic.typed import Trace
from tests.support.server import eventually
from tests.unit.loadtest.typed import PREFIX, trace

HELD_S = 60.0
ANSWERED, EMPTY, REFUSED, BROKEN = range(1, 5)
LLAMA = b'data: {"content": "hello", "stop": true, "tokens_predicted": 1}\n\n'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(uri: str, handler: Handler, **options: Any) -> AsyncIterator[HttpTarget]:
    """Serve the paths of all dialects and yield the target; the HOST of the URI is the server's."""
    app = web.Application()
    for path in ("/v1/completions", "/infill"):
        app.router.add_post(path, handler)
    async with TestServer(app) as running:
        spec = parse_target(uri.replace("HOST", f"127.0.0.1:{running.port}"))
        spec = replace(spec, credentials=options.pop("credentials", spec.credentials))
        async with HttpTarget(spec, ClientSettings(24), **options) as target:
            yield target


def outcomes(run: Run) -> list[str]:
    return [result.outcome.value for result in run.results]


@dataclass
class Server:
    """Answers the first request of a session, and holds the second after its first text."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_hung_up: int = 0

    async def answer(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        if "segments" in body:
            await self.hold_second()
            return web.json_response({"id": "cmpl", "choices": [{"index": 0, "text": "hello"}]})
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "text": text}]} for text in ("hel", "lo")]
        events.append({"choices": [], "usage": {"completion_tokens": 2}})
        if "input_prefix" in body:
            events = [{"content": text, "tokens_predicted": 2 - bool(text)} for text in ("hel", "lo", "")]
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(http)
        for event in events:
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await self.hold_second()
        await answer.write(b"" if "input_prefix" in body else b"data: [DONE]\n\n")
        return answer

    async def hold_second(self) -> None:
        if len(self.bodies) == 2:
            try:
                await asyncio.sleep(HELD_S)
            except asyncio.CancelledError:
                self.num_hung_up += 1
                raise


def text_only(made: Trace) -> Trace:
    """Return it without token ids."""
    return made.with_token_ids(iter([()] * (made.num_requests + len(made.sessions))))


PROMPTS: dict[str, dict[str, Any]] = {
    "openai+http://HOST?model=m&fim=<P>{prefix}<S>{suffix}<M>": {"model": "m", "prompt": f"<P>{PREFIX}<S>\n<M>"},
    "openai+http://HOST": {"prompt": PREFIX, "suffix": "\n", "max_tokens": 24, "stream": True},
    "llama+http://HOST": {"input_prefix": PREFIX, "input_suffix": "\n", "n_predict": 24, "stream": True},
    'tabby+http://HOST?body={"seed":3}': {"segments": {"prefix": PREFIX, "suffix": "\n"}, "seed": 3},
}


@pytest.mark.parametrize("uri", PROMPTS)
async def test_each_dialect_answers_and_is_cancelled_at_the_next_key(uri: str) -> None:
    server, made = Server(), text_only(trace((0.0, 9.0), (0.2, 0.4), (0.5, 9.0), duration_s=0.6))
    async with serving(uri, server.answer) as target:
        run = await drive(target, made, has_lead_in=False)
        await eventually(lambda: server.num_hung_up == 1)
    assert outcomes(run) == ["answered", "hung_up", "answered"]
    assert server.bodies[0].items() >= PROMPTS[uri].items()
    assert run.results[0].completion_tokens == (0 if uri.startswith("tabby") else 2)


@pytest.mark.parametrize("uri", ["openai+http://HOST", "llama+http://HOST", "tabby+http://HOST"])
async def test_an_answer_in_another_form_is_an_error(uri: str) -> None:
    async def answer(_http: web.Request) -> web.Response:
        return web.Response(body=b'data: {"strange": 1}\n\n')

    async with serving(uri, answer) as target:
        run = await drive(target, trace((0.0, 9.0)), has_lead_in=False)
    assert outcomes(run) == ["error"]
    assert "can't be read" in run.results[0].error


async def test_requests_end_as_the_server_says_and_have_the_tokens_and_fields_that_they_are_given() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(http: web.Request) -> web.Response:
        bodies.append(await http.json())
        (kind,) = bodies[-1]["prompt"]
        if kind == REFUSED:
            return web.Response(status=400, text="a bad prompt")
        if kind == BROKEN:
            return web.Response(body=b'data: {"error": {"message": "it broke"}}\n\n')
        text, usage = "pass" if kind == ANSWERED else " ", {"completion_tokens": 3}
        lines = ({"choices": [{"text": text}]}, {"choices": [], "usage": usage})
        return web.Response(body=b"".join(b"data: %s\n\n" % json.dumps(line).encode() for line in lines))

    kinds = (ANSWERED, EMPTY, REFUSED, BROKEN)
    made = trace(*((0.02 * place, 5.0) for place in range(len(kinds))))
    made = made.with_token_ids(iter([(ANSWERED,), *((kind,) for kind in kinds)]))
    first, *others = made.sessions[0].requests
    made = replace(made, sessions=(replace(made.sessions[0], requests=(replace(first, max_tokens=5), *others)),))
    async with serving("openai+http://HOST", answer, body={"stop_token_ids": [7]}) as target:
        run = await drive(target, made)
    assert outcomes(run) == ["answered", "empty", "error", "error"]
    assert [result.completion_tokens for result in run.results] == [3, 3, 0, 0]
    assert run.results[2].error == "a bad prompt"
    assert "it broke" in run.results[3].error
    assert [body["max_tokens"] for body in bodies[:3]] == [1, 5, 24]
    assert bodies[1]["stop_token_ids"] == [7]


async def test_an_editor_that_waits_has_one_request_at_a_time_and_then_sends_the_newest() -> None:
    running = most = num_sent = num_hung_up = 0

    async def answer(http: web.Request) -> web.StreamResponse:
        nonlocal running, most, num_sent, num_hung_up
        await http.read()
        running, num_sent = running + 1, num_sent + 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            num_hung_up += 1
            raise
        running -= 1
        return web.Response(body=LLAMA)

    made = text_only(trace((0.0, 0.1), (0.1, 0.2), (0.2, 9.0), duration_s=0.6))
    async with serving("llama+http://HOST?waits=1", answer) as target:
        run = await drive(target, made, has_lead_in=False)
    assert outcomes(run) == ["hung_up", "hung_up", "answered"]
    assert [(result.is_sent, result.text) for result in run.results] == [(True, ""), (False, ""), (True, "hello")]
    assert (most, num_sent, num_hung_up) == (1, 2, 0)
    with pytest.raises(TargetError, match="waits=1 sends the newest request"):
        HttpTarget(parse_target("llama+http://a:1?waits=1"), ClientSettings(cancels_at_key=False))


async def test_stragglers_are_cancelled_and_no_server_is_an_error() -> None:
    server = Server()
    async with serving("llama+http://HOST", server.answer) as target:
        made = text_only(trace((0.0, 9.0), (0.1, 9.0), duration_s=0.2))
        run = await drive(target, made, drain_s=0.05, has_lead_in=False)
        await eventually(lambda: server.num_hung_up == 1)
    assert outcomes(run) == ["answered", "unanswered"]
    async with HttpTarget(parse_target("llama+http://127.0.0.1:1"), ClientSettings()) as nobody:
        assert outcomes(await drive(nobody, trace((0.0, 9.0)), has_lead_in=False)) == ["error"]


async def test_users_present_their_tokens_and_a_refused_one_is_not_sent_in_a_loop(tmp_path: Path) -> None:
    presented, tokens = list[str](), tmp_path / "tokens"
    await asyncio.to_thread(tokens.write_text, "ada\nbad\n")

    async def answer(http: web.Request) -> web.Response:
        presented.append(http.headers["Authorization"])
        is_known = presented[-1] == "Bearer ada"
        return web.Response(body=LLAMA) if is_known else web.Response(status=401, text="it is unknown")

    made = text_only(trace((0.0, 5.0), (0.1, 5.0), (0.2, 5.0), num_sessions=2))
    async with serving("llama+http://HOST", answer, credentials=Credentials(user_tokens=tokens)) as target:
        run = await drive(target, made, has_lead_in=False)
    assert sorted(outcomes(run)) == ["answered"] * 3 + ["error"] * 3
    assert sorted(presented) == ["Bearer ada"] * 3 + ["Bearer bad"]
    assert {result.error for result in run.results if result.error} == {
        "it is unknown", "the server refused the token of the program's own settings: it is unknown",
    }  # fmt: skip
