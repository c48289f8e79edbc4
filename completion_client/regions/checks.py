"""Connects channels and asks servers for their health, with the round trip of the answer."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc

from completion_client.health import CHECK, SERVING, WHOLE_SERVER, status_of

_STEPS = 10
_NO_ANSWER = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of a health check."""

    round_trip_s: float | None
    """From the question to the answer on an open connection; None without an answer."""
    problem: str = ""
    """Why the server can't be used; "" if it serves."""


async def connect(channel: grpc.aio.Channel) -> bool:
    """Connect a channel; return whether it is connected. Unlike `channel_ready`, it does not wait after a refusal."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}:
            return False
        await channel.wait_for_state_change(state)
    return True


async def is_done_within(task: "asyncio.Task[Any]", limit_s: float) -> bool:
    """Wait for a task; return whether it is done within a time in which this process could run.

    The time in which it could not, because the computer slept or is overloaded, is no fault of the server. So the wait
    has short steps, and a step that takes longer than it should counts as long as it should.
    """
    for _ in range(_STEPS):
        done, _open = await asyncio.wait({task}, timeout=limit_s / _STEPS)
        if done:
            return True
    return False


async def check_health(channel: grpc.aio.Channel) -> CheckResult:
    """Connect a channel, if it is not connected, and ask for the health of the whole server, without a time limit.

    A server that does not offer health checks counts as serving: it answers.
    """
    if not await connect(channel):
        return CheckResult(None, "no connection")
    return await _ask(channel)


async def _ask(channel: grpc.aio.Channel) -> CheckResult:
    check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK)
    asked_s = time.perf_counter()
    try:
        answer = await check(WHOLE_SERVER)
    except grpc.aio.AioRpcError as error:
        if error.code() in _NO_ANSWER:
            return CheckResult(None, error.details() or "no answer to a health check")
        return CheckResult(time.perf_counter() - asked_s)
    round_trip_s = time.perf_counter() - asked_s
    status = status_of(answer)
    return CheckResult(round_trip_s, "" if status == SERVING else status)
