"""The messages that are received at once are bounded in number and in time."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from completion_server.api.rpc import intake
from completion_server.api.rpc.intake import Intake
from completion_server.core.errors import CompletionError, DeadlineError, InvalidRequestError
from completion_server.requests.limits.settings import LimitSettings
from loadtest.simulation import virtual_time
from tests.support.authentication import callers

TIMEOUT_S = 10.0


class Call:
    """A call whose message comes after a time."""

    def __init__(self, after_s: float, message: object = b"whole") -> None:
        self._after_s, self._message = after_s, message

    async def read(self) -> Any:
        await asyncio.sleep(self._after_s)
        return self._message


def make() -> Intake:
    return Intake(LimitSettings(), callers(), TIMEOUT_S, lambda: 0.0)


def test_messages_that_are_held_back_make_room_for_one_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_MAX_RECEIVING", 50)

    async def run() -> None:
        receiving, ended = make(), list[int]()

        async def hold(number: int) -> None:
            with contextlib.suppress(DeadlineError):
                await receiving.receive(Call(TIMEOUT_S / 2))
                return
            ended.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(hold(number))
                await asyncio.sleep(0.001)
            assert await receiving.receive(Call(0.001)) == b"whole"
            assert ended == [*range(11)]  # the oldest first, and each once
        assert ended == [*range(11)]
        for _ in range(100):  # a message that was received leaves no trace
            assert await receiving.receive(Call(0)) == b"whole"

    virtual_time.run(run())


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (Call(TIMEOUT_S + 1), DeadlineError, r"not received within 10 s"),
        (Call(0, grpc.aio.EOF), InvalidRequestError, "message: must be sent, but the call ended without one"),
    ],
)
def test_a_message_that_does_not_come_is_told(call: Call, error: type[CompletionError], why: str) -> None:
    async def run() -> None:
        with pytest.raises(error, match=why):
            await make().receive(call)

    virtual_time.run(run())
