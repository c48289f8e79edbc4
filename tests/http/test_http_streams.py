"""Answers that end early, and streams and whole answers of the same request, through the whole server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.http_clients import HTTP, HttpAnswer, broken_off, first_event, http_session, post, streaming
from tests.support.http_script import AFTER, BEFORE, TEXT, Script, ended
from tests.support.server import ENDLESS, RunningServer, endless_config, eventually, run_server

QWEN = "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>"
ANN = {"x-user-id": "ann"}
STREAMED = ("/v1/completions", "/v1/fim/completions", "/infill", "/completion")


@pytest_asyncio.fixture
async def busy_server(engine: ScriptedEngine, script: Script) -> AsyncIterator[RunningServer]:
    """Yield a server whose only slot one user has."""
    slot = ("scheduling.max_slots=1", "scheduling.min_slots=1", "engine.heartbeat_s=0", HTTP)
    async with run_server(endless_config(*slot), lambda: engine) as server:
        script.never_end()
        first = asyncio.create_task(post(server, "/completion", {"prompt": "x"}, {"x-user-id": "first"}))
        await eventually(lambda: len(script.generations) == 1)
        yield server
        first.cancel()


def is_end(event: Any) -> bool:
    """Return whether an event tells a client that the answer is whole."""
    if event == "[DONE]":
        return True
    reasons = [each["finish_reason"] for each in event.get("choices", ())]
    return any(reasons) or bool(event.get("stop")) or "usage" in event


async def test_three_alike_at_once_join_one_generation_and_the_next_key_ends_them(
    server: RunningServer, script: Script, engine: ScriptedEngine
) -> None:
    script.never_end()
    body = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": ENDLESS}
    async with AsyncExitStack() as stack:
        opened = (streaming(server, "/v1/completions", body, ANN) for _ in range(3))
        three = [await stack.enter_async_context(each) for each in opened]
        firsts = [await first_event(each) for each in three]
        assert all(b'"text":" w0' in each for each in firsts)
        assert len(script.generations) == 1
        assert server.count("completion_generations_joined_total") == 2
        script.num_words = None
        newer = await post(server, "/v1/completions", {"prompt": BEFORE + "x", "suffix": AFTER}, ANN)
        assert newer.json["choices"][0]["text"] == TEXT
        for each in three:
            *_texts, last = await broken_off(each)
            assert last["error"]["message"] == "the request was superseded by a newer one"
    assert ended(server, "superseded") == 3
    await eventually(lambda: engine.stats().num_running == 0)


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_that_is_superseded_is_no_whole_answer(server: RunningServer, script: Script, path: str) -> None:
    script.never_end()
    async with streaming(
        server, path, {"prompt": BEFORE, "stream_options": {"include_usage": True}}, ANN
    ) as connection:
        await first_event(connection)
        script.num_words = None
        await post(server, path, {"prompt": BEFORE + "other"}, ANN)
        events = await broken_off(connection)
    assert [each for each in events if is_end(each)] == []
    assert "superseded" in events[-1]["error"]["message"]


@pytest.mark.parametrize("path", STREAMED[:2])
async def test_a_stream_that_is_superseded_while_it_waits_is_no_whole_answer(
    busy_server: RunningServer, path: str
) -> None:
    async with streaming(busy_server, path, {"prompt": BEFORE}, ANN) as connection:
        await eventually(lambda: busy_server.count("completion_queued_requests") == 1)
        newer = asyncio.create_task(post(busy_server, path, {"prompt": BEFORE + "other"}, ANN))
        (event,) = await broken_off(connection)
        newer.cancel()
    assert "superseded" in event["error"]["message"]


async def test_a_stream_that_fails_is_no_whole_answer(server: RunningServer, script: Script) -> None:
    script.never_end()
    async with streaming(server, "/v1/completions", {"prompt": BEFORE}, ANN) as connection:
        await first_event(connection)
        server.app.drain(0.0)
        events = await broken_off(connection)
    assert [each for each in events if is_end(each)] == []
    assert events[-1]["error"]["type"] == "server_error"


async def superseded(server: RunningServer, script: Script, path: str, suffix: str) -> HttpAnswer:
    """Return the answer to a request that the next key ends."""
    script.never_end()
    first = asyncio.create_task(post(server, path, {"prompt": BEFORE, suffix: AFTER}))
    await eventually(lambda: len(script.generations) == 1)
    script.num_words = None
    await post(server, path, {"prompt": BEFORE + "other", suffix: AFTER})
    return await first


async def test_a_superseded_request_is_answered_with_nothing(server: RunningServer, script: Script) -> None:
    answer = await superseded(server, script, "/v1/completions", "suffix")
    assert (answer.status, answer.headers["x-finish-reason"]) == (200, "superseded")
    assert answer.json["choices"][0]["text"] == ""


async def test_llama_vim_gets_no_content_to_remember_for_a_superseded_request(
    server: RunningServer, script: Script
) -> None:
    answer = await superseded(server, script, "/infill", "input_suffix")
    assert (answer.status, answer.json["error"]["type"]) == (429, "unavailable_error")
    assert '"content":"' not in answer.text
    assert server.count("completion_refused_requests_total", code="resource_exhausted") == 0


async def test_a_client_that_leaves_frees_the_engine(
    server: RunningServer, script: Script, engine: ScriptedEngine
) -> None:
    script.never_end()
    url = f"http://{server.ready.http_address}/infill"
    for is_streamed in (True, False):
        async with http_session() as session:
            asking = asyncio.create_task(session.post(url, json={"prompt": "x", "stream": is_streamed}))
            await eventually(lambda: engine.stats().num_running == 1)
            if is_streamed:
                (await asking).close()
            asking.cancel()
        await eventually(lambda: engine.stats().num_running == 0)
    await eventually(lambda: ended(server, "cancelled") == 2)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_while_it_waits_reaches_no_engine(
    busy_server: RunningServer, script: Script, is_streamed: bool
) -> None:
    async with http_session() as session:
        url = f"http://{busy_server.ready.http_address}/infill"
        body = {"prompt": "y", "stream": is_streamed}
        asking = asyncio.create_task(session.post(url, json=body, headers=ANN))
        await eventually(lambda: busy_server.count("completion_queued_requests") == 1)
        asking.cancel()
        await eventually(lambda: busy_server.count("completion_queued_requests") == 0)
    await eventually(lambda: ended(busy_server, "cancelled") == 1)
    assert len(script.generations) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_from_the_cache_has_the_usage_of_its_text(
    engine: ScriptedEngine, script: Script, is_streamed: bool
) -> None:
    config = endless_config("engine.heartbeat_s=0", "cache.enabled=true", HTTP)
    async with run_server(config, lambda: engine) as server:
        body = {"prompt": BEFORE, "stream": is_streamed, "stream_options": {"include_usage": True}}
        answers = [await post(server, "/v1/completions", body, ANN) for _ in range(2)]
        whole = [each.events[-2] if is_streamed else each.json for each in answers]
        (computed, known) = (each["usage"] for each in whole)
        assert known == computed | {"prompt_tokens_details": {"cached_tokens": computed["prompt_tokens"]}}
        assert min(known["prompt_tokens"], known["completion_tokens"]) > 0
        answers = [await post(server, "/infill", {"prompt": "x", "stream": is_streamed}, ANN) for _ in range(2)]
        counts = [
            (each["tokens_evaluated"], each["tokens_predicted"], each["timings"]["predicted_n"])
            for each in (each.events[-1] if is_streamed else each.json for each in answers)
        ]
        assert counts[0] == counts[1]
        assert min(counts[0]) > 0
        assert len(script.generations) == 2
        assert server.count("completion_tokens_total", kind="completion") == 2 * computed["completion_tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": BEFORE, "suffix": AFTER}),
        ("/v1/completions", {"prompt": QWEN.format(BEFORE, AFTER)}),
        ("/v1/fim/completions", {"prompt": BEFORE, "suffix": AFTER}),
        ("/infill", {"input_prefix": BEFORE, "input_suffix": AFTER}),
        ("/completion", {"prompt": QWEN.format(BEFORE, AFTER)}),
        ("/v1/completions", {"segments": {"prefix": BEFORE, "suffix": AFTER}}),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_document_with_crlf_is_answered_like_one_with_lf(
    server: RunningServer, script: Script, path: str, body: dict[str, Any], is_streamed: bool
) -> None:
    crlf = json.loads(json.dumps(body).replace("\\n", "\\r\\n"))
    answers = [await post(server, path, each | {"stream": is_streamed}) for each in (body, crlf)]
    is_event_stream = is_streamed and "segments" not in body  # Tabby's dialect has no streams
    assert [each.headers["content-type"] == "text/event-stream" for each in answers] == 2 * [is_event_stream]
    lf, converted = (text_of(answer) for answer in answers)
    assert (lf, converted) == (TEXT, TEXT.replace("\n", "\r\n"))
    first, second = script.generations
    assert first.prompt_token_ids == second.prompt_token_ids


def text_of(answer: HttpAnswer) -> str:
    """Return the text of an answer in any form."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return _text_of(answer.json)
    assert answer.headers["x-accel-buffering"] == "no"  # so that proxies pass a stream on at once
    return "".join(_text_of(each) for each in answer.events if each != "[DONE]")


def _text_of(document: dict[str, Any]) -> str:
    if "content" in document:
        return str(document["content"])
    texts = [each.get("text") or each.get("message", each.get("delta", {})).get("content", "")
             for each in document["choices"]]  # fmt: skip
    return "".join(texts)
