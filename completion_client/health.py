"""gRPC's standard health check, `grpc.health.v1.Health/Check` of the whole server, with the round trip of the answer.

Its two messages, one empty and one with one enum, are read and written here: no package is needed for them.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

T = TypeVar("T")

CHECK = "/grpc.health.v1.Health/Check"
WHOLE_SERVER = b""
"""The request: without a service's name it is for the whole server."""
SERVING = "SERVING"

_NAMES = {0: "UNKNOWN", 1: SERVING, 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_STATUS_FIELD = 0x08
"""Field 1, a varint."""
_STEPS = 10
_NO_ANSWER = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


def status_of(response: bytes) -> str:
    """Return the status of an encoded HealthCheckResponse, such as "SERVING"; its default, 0, is not sent."""
    number = response[1] if len(response) > 1 and response[0] == _STATUS_FIELD else 0
    return _NAMES.get(number, str(number))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of a health check."""

    round_trip_s: float | None
    """From the question to the answer on an open connection; None without an answer."""
    problem: str = ""
    """Why the server can't be used; "" if it serves."""


async def within(limit_s: float, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of some work; None if it is not done within a time in which this process could run.

    The time in which it could not, because the computer slept or is overloaded, is no fault of the server. So the wait
    has short steps, and a step that takes longer than it should counts as long as it should.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_STEPS):
            done, _open = await asyncio.wait({task}, timeout=limit_s / _STEPS)
            if done:
                return None if task.cancelled() else task.result()
        return None
    finally:
        task.cancel()


async def connect(channel: grpc.aio.Channel) -> bool:
    """Connect a channel; return whether it is connected. Unlike `channel_ready`, it does not wait after a refusal."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}:
            return False
        await channel.wait_for_state_change(state)
    return True


async def check_health(channel: grpc.aio.Channel) -> CheckResult:
    """Connect a channel, if it is not connected, and ask for the health of the whole server, without a time limit.

    A server that does not offer health checks counts as serving: it answers.
    """
    if not await connect(channel):
        return CheckResult(None, "no connection")
    check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK)
    asked_s = time.perf_counter()
    try:
        status = status_of(await check(WHOLE_SERVER))
    except grpc.aio.AioRpcError as error:
        if error.code() in _NO_ANSWER:
            return CheckResult(None, error.details() or "no answer to a health check")
        status = SERVING
    return CheckResult(time.perf_counter() - asked_s, "" if status == SERVING else status)
