"""Turns to receive a message: bounded for each address, and for all together."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

import pytest

from completion_server.admission.identity import Identity
from completion_server.admission.turns import ReceiveTurns
from completion_server.core.errors import DeadlineError
from loadtest.simulation import virtual_time

HELD_S = 10.0


def caller(number: int, *, is_verified: bool = False) -> Identity:
    address = f"10.0.{number // 250}.{number % 250}"
    return Identity("", "", f"{address}:1", address, is_verified)


@pytest.mark.parametrize("is_verified", [False, True])
def test_messages_held_back_from_many_addresses_make_room_for_one_that_comes(is_verified: bool) -> None:
    async def run() -> None:
        turns, ended = ReceiveTurns(max_receiving=50), list[int]()

        async def hold(number: int) -> None:
            with contextlib.suppress(DeadlineError):
                async with turns.of(caller(number, is_verified=is_verified)):
                    await asyncio.sleep(HELD_S)
                return
            ended.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(hold(number))
                await asyncio.sleep(0.001)
            async with turns.of(caller(999)):
                await asyncio.sleep(0.001)
            assert ended == [*range(11)]  # the oldest first, and each once
            await asyncio.sleep(HELD_S)
        assert ended == [*range(11)]

    virtual_time.run(run())


def test_a_message_that_ends_its_turn_leaves_no_trace() -> None:
    async def run() -> None:
        turns = ReceiveTurns(max_receiving=2)
        for number in range(1_000):
            async with turns.of(caller(number)):
                await asyncio.sleep(0)
        with pytest.raises(InterruptedError):
            async with turns.of(caller(1)):
                raise InterruptedError
        with pytest.raises(TimeoutError):  # another time limit is not taken for the turn's
            async with turns.of(caller(1)), asyncio.timeout(1.0):
                await asyncio.sleep(2.0)
        async with AsyncExitStack() as both:
            for number in (1, 2):
                await both.enter_async_context(turns.of(caller(number)))
            await asyncio.sleep(0)  # neither is ended

    virtual_time.run(run())


def test_an_address_has_so_many_turns_and_others_have_theirs() -> None:
    async def run() -> None:
        turns, received = ReceiveTurns(), list[int]()

        async def hold(number: int) -> None:
            async with turns.of(caller(number)):
                received.append(number)
                await asyncio.sleep(HELD_S)

        async with asyncio.TaskGroup() as group:
            for number in (*[1] * 130, 2):
                group.create_task(hold(number))
            await asyncio.sleep(HELD_S / 2)
            assert (received.count(1), received.count(2)) == (128, 1)
        assert received.count(1) == 130

    virtual_time.run(run())
