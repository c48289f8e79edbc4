"""Turns to receive a message: bounded for each address, and for all together."""

import asyncio
import contextlib

import pytest

from completion_server.admission.identity import Identity
from completion_server.admission.turns import ReceiveTurns
from completion_server.core.errors import DeadlineError
from loadtest.simulation import virtual_time

HELD_S = 10.0


def caller(number: int, *, is_verified: bool = False) -> Identity:
    address = f"10.0.{number // 250}.{number % 250}"
    return Identity("", "", f"{address}:1", address, is_verified)


async def held_back() -> None:
    await asyncio.sleep(HELD_S)


async def failing() -> None:
    raise InterruptedError


@pytest.mark.parametrize("is_verified", [False, True])
def test_messages_held_back_from_many_addresses_make_room_for_one_that_comes(is_verified: bool) -> None:
    async def run() -> None:
        turns, ended = ReceiveTurns(max_receiving=50), list[int]()

        async def hold(number: int) -> None:
            with contextlib.suppress(DeadlineError):
                await turns.take(caller(number, is_verified=is_verified), held_back)
                return
            ended.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(hold(number))
                await asyncio.sleep(0.001)
            await turns.take(caller(999), lambda: asyncio.sleep(0.001))
            assert ended == [*range(11)]  # the oldest first, and each once
            await asyncio.sleep(HELD_S)
        assert ended == [*range(11)]

    virtual_time.run(run())


def test_a_message_that_ends_its_turn_leaves_no_trace() -> None:
    async def run() -> None:
        turns = ReceiveTurns(max_receiving=2)
        for number in range(1_000):
            await turns.take(caller(number), lambda: asyncio.sleep(0))
        with pytest.raises(InterruptedError):
            await turns.take(caller(1), failing)
        with pytest.raises(TimeoutError):  # another time limit is not taken for the turn's
            await turns.take(caller(1), lambda: asyncio.wait_for(held_back(), 1.0))
        both = (turns.take(caller(number), lambda: asyncio.sleep(1.0, "received")) for number in (1, 2))
        assert await asyncio.gather(*both) == ["received"] * 2  # neither is ended

    virtual_time.run(run())


def test_an_address_has_so_many_turns_and_others_have_theirs() -> None:
    async def run() -> None:
        turns, received = ReceiveTurns(), list[int]()

        async def hold(number: int) -> None:
            async def receive() -> None:
                received.append(number)
                await held_back()

            await turns.take(caller(number), receive)

        async with asyncio.TaskGroup() as group:
            for number in (*[1] * 130, 2):
                group.create_task(hold(number))
            await asyncio.sleep(HELD_S / 2)
            assert (received.count(1), received.count(2)) == (128, 1)
        assert received.count(1) == 130

    virtual_time.run(run())


def test_a_message_is_received_within_the_time_of_its_turn() -> None:
    async def run() -> None:
        turns = ReceiveTurns(max_receiving=1)
        with pytest.raises(TimeoutError):
            await turns.take(caller(1), held_back, 1.0)
        assert await turns.take(caller(1), lambda: asyncio.sleep(0.5, "received"), 1.0) == "received"
        late = asyncio.create_task(turns.take(caller(1), held_back, 1.0))
        await asyncio.sleep(0.5)
        assert await turns.take(caller(2), lambda: asyncio.sleep(0.1, "received"), 1.0) == "received"
        with pytest.raises(DeadlineError, match="before 1 others"):
            await late

    virtual_time.run(run())
