"""Plugins' requests over HTTP through the whole server, with a scripted engine behind it."""

import asyncio
import signal

import openai
import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.http_clients import HTTP, get, http_session, post
from tests.support.http_script import AFTER, BEFORE, TEXT, Script, ended
from tests.support.server import (
    ENDLESS,
    RunningServer,
    ask,
    endless_config,
    eventually,
    request,
    run_server,
)

QWEN, STARCODER = "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>", "<fim_prefix>{}<fim_suffix>{}<fim_middle>"


async def test_the_openai_package_gets_an_answer_whole_and_as_a_stream(server: RunningServer) -> None:
    base_url = f"http://{server.ready.http_address}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=30) as client:
        (model,) = (await client.models.list()).data
        whole = await client.completions.create(model=model.id, prompt=BEFORE, suffix=AFTER, max_tokens=64)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (TEXT, "stop")
        assert whole.usage is not None
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0
        stream = await client.completions.create(model=model.id, prompt=BEFORE, suffix=AFTER, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
        assert len(chunks) > 2
        assert chunks[-1].choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model=model.id, prompt=BEFORE, n=3)
        assert (caught.value.param, caught.value.type) == ("n", "invalid_request_error")


async def test_a_time_limit_answers_with_what_there_is_and_stops_the_engine(
    server: RunningServer, script: Script, engine: ScriptedEngine
) -> None:
    script.never_end()
    body = {"prompt": "x", "n_predict": ENDLESS, "t_max_prompt_ms": 1000, "t_max_predict_ms": 2000}
    answer = await post(server, "/infill", body)
    assert answer.json["content"].startswith(" w0 w1")
    assert (answer.json["stop_type"], answer.json["truncated"]) == ("limit", False)
    assert ended(server, "deadline") == 1
    await eventually(lambda: engine.stats().num_running == 0)


async def test_a_warm_up_reaches_no_engine(server: RunningServer, script: Script) -> None:
    answer = await post(server, "/infill", {"input_prefix": "x", "n_predict": 0, "t_max_predict_ms": 1})
    assert (answer.status, answer.json["content"]) == (200, "")
    streamed = await post(server, "/v1/completions", {"prompt": "x", "max_tokens": 0, "stream": True})
    assert streamed.events[-1] == "[DONE]"
    assert script.generations == []
    refused = await post(server, "/infill", {"input_prefix": "x" * 600_000, "n_predict": 0})
    assert refused.status == 400


async def test_another_document_of_the_same_address_is_left_alone(server: RunningServer, script: Script) -> None:
    script.never_end()
    body = {"prompt": BEFORE, "input_suffix": AFTER, "n_predict": ENDLESS}
    first = asyncio.create_task(post(server, "/infill", body))
    await eventually(lambda: len(script.generations) == 1)
    other = {"prompt": "package main\n\nfunc main() {\n\tx", "n_predict": ENDLESS, "t_max_predict_ms": 500}
    second = await post(server, "/infill", other)
    assert second.headers["x-finish-reason"] == "deadline"
    assert not first.done()
    first.cancel()
    await eventually(lambda: ended(server, "cancelled") == 1)
    assert (ended(server, "superseded"), ended(server, "deadline")) == (0, 1)


async def test_a_completion_of_grpc_is_in_the_cache_of_http(engine: ScriptedEngine, script: Script) -> None:
    config = endless_config("engine.heartbeat_s=0", "cache.enabled=true", HTTP)
    async with run_server(config, lambda: engine) as server:
        grpc_request = request(BEFORE, AFTER, mode="MODE_MULTI_LINE", max_tokens=64)
        await ask(server.stub, grpc_request, metadata=(("x-user-id", "ann"),))
        body = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 64}
        answer = await post(server, "/v1/completions", body, {"x-user-id": "ann"})
        assert answer.json["choices"][0]["text"] == TEXT
        assert len(script.generations) == 1


@pytest.mark.parametrize(
    ("body", "own", "foreign"),
    [
        ({}, {"authorization": "Bearer t"}, {"authorization": "Bearer other"}),
        ({"user": "ann"}, {}, {"x-user-id": "bob"}),  # an event has no name of its own
    ],
)
async def test_feedback_of_tabby_is_its_users_and_counts_once(
    server: RunningServer, body: dict[str, str], own: dict[str, str], foreign: dict[str, str]
) -> None:
    segments = {"language": "python", "segments": {"prefix": BEFORE, "suffix": AFTER}}
    completion = (await post(server, "/v1/completions", segments | body, own)).json
    assert completion["choices"] == [{"index": 0, "text": TEXT}]
    event = {"type": "view", "completion_id": completion["id"], "choice_index": 0}
    assert (await post(server, "/v1/events", event, foreign)).status == 400
    for kind in ("view", "select"):
        assert (await post(server, "/v1/events", event | {"type": kind}, own)).status == 200
    assert server.count("completion_feedback_total", kind="accepted") == 1


async def test_the_listener_leaves_signals_to_its_process(engine: ScriptedEngine) -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with run_server(endless_config(HTTP), lambda: engine) as server:
        assert (await get(server, "/health")).status == 200
        assert signal.getsignal(signal.SIGTERM) is before


async def test_documents_about_the_server(server: RunningServer) -> None:
    assert (await get(server, "/health")).json == {"status": "ok"}
    assert (await get(server, "/v1/models")).json["data"][0]["id"] == "scripted"
    assert (await get(server, "/props")).json["default_generation_settings"]["n_ctx"] > 0
    health = (await get(server, "/v1/health")).json
    assert (health["model"], health["version"]["git_describe"]) == ("scripted", "0.1.0")
    assert (await get(server, "/v1beta/server_setting")).json == {"disable_client_side_telemetry": True}


async def test_a_wrong_path_or_method_is_an_error_in_json(server: RunningServer) -> None:
    paths = ("/elsewhere", "/v1/completions/", "//infill", "/playground", "/playground/elsewhere", "/admin")
    methods = {"/infill": "GET", "/admin/speculation": "GET", "/": "POST", "/v1/completions": "OPTIONS"}
    large = b'{"prompt":"' + b"x" * 300_000 + b'"}'
    asked = [("POST", path, 404, "path") for path in paths]
    asked += [(method, path, 405, "method") for path, method in methods.items()]
    async with http_session() as session:
        for method, path, status, param in asked:
            url, body = f"http://{server.ready.http_address}{path}", None if method == "GET" else large
            async with session.request(method, url, data=body, allow_redirects=False) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, "allow" in answer.headers) == (status, status == 405)
            assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_a_draining_server_refuses_new_requests_and_finishes_accepted_ones(
    server: RunningServer, script: Script
) -> None:
    script.num_words = 100
    accepted = asyncio.create_task(post(server, "/v1/completions", {"prompt": "x", "max_tokens": 90}))
    await eventually(lambda: len(script.generations) == 1)
    server.app.drain(20.0)
    await eventually(lambda: server.app.is_draining)
    refused = await post(server, "/infill", {"prompt": "y"})
    assert (refused.status, refused.json["error"]["type"]) == (503, "unavailable_error")
    assert int(refused.headers["retry-after"]) > 0
    assert (await get(server, "/health")).status == 503
    assert (await accepted).json["usage"]["completion_tokens"] > 0
    done, _ = await asyncio.wait([server.task], timeout=30)
    assert done, "the server did not end within 30 s"


LIMITED = ("admission.user_requests_per_s=0.001", "engine.heartbeat_s=0", HTTP)


async def test_a_shed_request_is_quiet_but_llama_vim_would_remember_an_empty_answer(engine: ScriptedEngine) -> None:
    async with run_server(endless_config(*LIMITED), lambda: engine) as server:
        await post(server, "/v1/completions", {"prompt": "x"})
        answer = await post(server, "/v1/completions", {"prompt": "x"})
        assert (answer.status, answer.headers["x-finish-reason"]) == (200, "shed")
        assert (answer.json["choices"][0]["text"], answer.json["usage"]["total_tokens"]) == ("", 0)
        streamed = await post(server, "/v1/completions", {"prompt": "x", "stream": True})
        assert streamed.events[-1] == "[DONE]"
        for is_streamed in (False, True):
            answer = await post(server, "/infill", {"prompt": "x", "stream": is_streamed})
            assert (answer.status, answer.json["error"]["type"]) == (429, "unavailable_error")
            assert int(answer.headers["retry-after"]) > 0


async def test_a_server_that_reports_sheds_says_when_to_retry(engine: ScriptedEngine) -> None:
    config = endless_config(*LIMITED, "shed.as_status=true")
    async with run_server(config, lambda: engine) as server:
        await post(server, "/v1/completions", {"prompt": "x"})
        answer = await post(server, "/v1/completions", {"prompt": "x"})
        assert (answer.status, answer.json["error"]["code"]) == (429, "RATE_LIMITED")
        assert server.count("completion_refused_requests_total", code="resource_exhausted") == 0
        assert int(answer.headers["retry-after"]) > 0


async def test_warm_ups_and_events_are_charged_like_requests(engine: ScriptedEngine) -> None:
    async with run_server(endless_config(*LIMITED, "admission.request_burst_s=3000"), lambda: engine) as server:
        ann = {"x-user-id": "ann"}
        for headers in ({}, ann):
            warm_ups = [{"prompt": f"{i}", "n_predict": 0} for i in range(4)]
            statuses = [(await post(server, "/infill", each, headers)).status for each in warm_ups]
            assert statuses == [200, 200, 200, 429]
        assert (await post(server, "/infill", {"prompt": "x"}, ann)).status == 429
        completion = (await post(server, "/v1/completions", {"segments": {"prefix": "x"}})).json
        event = {"type": "view", "completion_id": completion["id"]}
        statuses = [(await post(server, "/v1/events", event)).status for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_limits_of_a_user_are_those_of_a_document_at_an_address_without_names(engine: ScriptedEngine) -> None:
    async with run_server(endless_config(*LIMITED), lambda: engine) as server:
        prompts = ("import os\n\n\ndef first():\n    ", "package main\n\nfunc second() {\n\t")
        reasons = [
            (await post(server, "/v1/completions", {"prompt": prompt + key})).headers["x-finish-reason"]
            for key in ("x", "xy")
            for prompt in prompts
        ]
        assert reasons == ["stop", "stop", "shed", "shed"]
