"""Faults of the server itself: the client is told, or notices, and the log has the cause."""

from typing import NoReturn

import aiohttp
import pytest

from completion_server.api.http import openai
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.http_clients import HTTP, get, post
from tests.support.server import make_config, run_server


def fail(*_arguments: object) -> NoReturn:
    raise RuntimeError("broken")


async def test_a_failed_request_is_answered_as_json_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_server(make_config(HTTP), ScriptedEngine) as server:
        monkeypatch.setattr(openai, "usage", fail)
        monkeypatch.setattr(openai, "models", fail)
        for answer in (await get(server, "/v1/models"), await post(server, "/v1/completions", {"prompt": "x"})):
            assert answer.status == 500
            assert answer.json["error"]["type"] == "server_error"
            assert "broken" not in answer.text
        assert [each.getMessage() for each in caplog.records if each.exc_info] == ["an HTTP request failed"] * 2
        assert (await get(server, "/health")).status == 200


async def test_a_stream_that_fails_has_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_server(make_config(HTTP), ScriptedEngine) as server:
        monkeypatch.setattr(openai, "finish_reason", fail)
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(server, "/v1/completions", {"prompt": "x", "stream": True})
        assert [each.getMessage() for each in caplog.records if each.exc_info] == ["an HTTP request failed"]
