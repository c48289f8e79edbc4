"""Load of honest form from many addresses: three times what the engine can do, ten times, and cancelled requests."""

import asyncio
import itertools
from contextlib import AsyncExitStack

from loadtest.bench.attacks.attack import ADDRESSES, Counts, Target, ask, ask_at_rate, source_of, typed
from loadtest.bench.attacks.http2 import Http2Connection, framed

CAPACITY_PER_S = 60.0
"""Requests like those of `typed` that the scripted engine of the benchmark ends in a second, about."""
UNLIMITED = ("admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.users_per_peer=0")
"""Settings of a server that serves every request of one attacker."""
_CANCELLED_USERS = 100


def _framed(user: str, sequence: int) -> bytes:
    return framed(typed(user, sequence, without_completion_cache=True).SerializeToString())


async def overload(target: Target, counts: Counts, times: float = 3.0) -> None:
    """Ask `times` the engine's capacity, each request as another of 4 users at each of 64 addresses."""
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(await Http2Connection.open(target.address, source_of(number)))
            for number in range(ADDRESSES)
        ]

        async def call(number: int) -> None:
            place = number % (4 * ADDRESSES)
            user = f"user-{place}"
            await ask(connections[place % ADDRESSES], _framed(user, number), counts, (("x-user-id", user),))

        await ask_at_rate(times * CAPACITY_PER_S, call, *connections)


async def cancels(target: Target, counts: Counts) -> None:
    """Ask without end as 100 users of one connection, each of which cancels every second request at its first text."""
    numbers = itertools.count(1)
    async with await Http2Connection.open(target.address) as connection, asyncio.TaskGroup() as group:

        async def ask_on(user: str) -> None:
            metadata = (("x-user-id", user),)
            while connection.is_open:
                number = next(numbers)
                if number % 2 == 0:
                    await ask(connection, _framed(user, number), counts, metadata)
                    continue
                stream = connection.call("Complete", metadata)
                await stream.send(_framed(user, number), ends=True)
                await stream.answered()
                stream.reset()
                counts["cancelled"] += 1

        for user in range(_CANCELLED_USERS):
            group.create_task(ask_on(f"user-{user}"))
