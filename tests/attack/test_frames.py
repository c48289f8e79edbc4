"""Mutated HTTP/2 frames and HTTP bodies, and floods of frames: nothing fails in the server, and others are served."""

import logging
import random

import pytest

from loadtest.bench.attacks.http2 import Http2Connection
from tests.attack.conftest import engine
from tests.attack.malformed import (
    FRAMES,
    PREFACE_BYTES,
    exchange,
    flood,
    frames_of_a_call,
    http_request,
    mutated,
)
from tests.support.http_clients import HTTP
from tests.support.server import RunningServer, ask, eventually, make_config, request, run_server

pytestmark = pytest.mark.serial

UNLIMITED = "admission.user_requests_per_s=0"
COUNTS = [60, pytest.param(1_000, marks=pytest.mark.large)]
BODY = b'{"prompt":"x = ","suffix":"\\n","stop":["a"],"n_predict":5,"temperature":0.5}'


def faults_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the server has logged as a failure of its own."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR or each.exc_text]


async def check_serves(server: RunningServer) -> None:
    assert (await ask(server.stub, request())).reason == "stop"
    await eventually(lambda: server.count("completion_live_sessions") == 0)
    await eventually(lambda: server.count("completion_running_requests") == 0)


@pytest.mark.parametrize("num", COUNTS)
async def test_mutated_frames_harm_no_other_caller(num: int, caplog: pytest.LogCaptureFixture) -> None:
    async with run_server(make_config(UNLIMITED), engine) as server:
        chance, whole = random.Random(7), frames_of_a_call()
        assert await exchange(server.ready.address, whole, within_s=1.0)
        for _ in range(num):
            frames = whole[:PREFACE_BYTES] + mutated(whole[PREFACE_BYTES:], chance)
            await exchange(server.ready.address, frames, within_s=0.05)  # some leave the connection open
        await check_serves(server)
    assert faults_in(caplog) == []


@pytest.mark.parametrize("num", COUNTS)
async def test_mutated_bodies_are_answered(num: int, caplog: pytest.LogCaptureFixture) -> None:
    async with run_server(make_config(UNLIMITED, HTTP), engine) as server:
        chance = random.Random(7)
        for _ in range(num):
            answer = await exchange(server.ready.http_address, http_request(mutated(BODY, chance)))
            assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")), answer[:200]
        await check_serves(server)
    assert faults_in(caplog) == []


@pytest.mark.parametrize("kind", FRAMES)
async def test_a_flood_of_frames_is_cut_off_or_others_are_served_meanwhile(kind: str) -> None:
    async with (
        run_server(make_config(UNLIMITED), engine) as server,
        await Http2Connection.open(server.ready.address) as connection,
    ):
        connection.call("Session")
        await flood(connection, kind, 3_000)
        if kind == "ping":
            await eventually(lambda: not connection.is_open)
        await connection.aclose()
        await check_serves(server)
