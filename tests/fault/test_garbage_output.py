"""An engine whose output makes no sense: each request has one end, others are served, and nothing is left behind."""

import logging
from collections.abc import Iterable

import grpc
import pytest

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes, Token
from tests.support.server import ask, eventually, make_config, request, run_server

GARBAGE = {
    "replacement characters": ("\ufffd" * 100, "\ufffd"),
    "stops in mid-character": ("caf", "\ufffd"),
    "control characters": ("\x00\x1b[2J\x7f", "\x08" * 50),
    "private and unassigned": ("\ue000\U0010ffff\ufdd0", "\u202e\u2066"),
    "nothing at all": ("", "", ""),
    "one endless token": ("x" * 100_000,),
    "combining marks": ("e" + "\u0301" * 10_000,),
    "line breaks alone": ("\r\r\n\n\x85\u2028",),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_passed_on_or_ends_its_request_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def script(generation: GenerationRequest) -> Iterable[str | Token]:
        return GARBAGE[name] if generation.max_tokens == len(GARBAGE[name]) else ("alpha", " beta")

    engine = ScriptedEngine(script, ServiceTimes(decode_base_s=0.001))
    async with run_server(make_config("admission.user_requests_per_s=0"), lambda: engine) as server:
        for mode in (1, 2):
            message = request(max_tokens=len(GARBAGE[name]), session_id=f"mode {mode}", mode=mode)
            answer = await ask(server.stub, message)
            assert answer.code in {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL}
            assert answer.end is not None or answer.code is grpc.StatusCode.INTERNAL
            assert (await ask(server.stub, request(max_tokens=9, mode=mode))).text == "alpha beta"
        await eventually(lambda: engine.stats().num_running == 0)
        assert server.count("completion_running_requests") == 0
        assert server.count("completion_engine_restarts_total") == 0
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_text_that_cannot_be_encoded_ends_its_request_alone() -> None:
    engine = ScriptedEngine(lambda each: ("ab\ud800", "\udfff") if each.max_tokens == 2 else ("alpha", " beta"))
    async with run_server(make_config(), lambda: engine) as server:
        assert (await ask(server.stub, request(max_tokens=2))).code is grpc.StatusCode.INTERNAL
        assert (await ask(server.stub, request(max_tokens=9))).text == "alpha beta"
        assert server.count("completion_running_requests") == 0
