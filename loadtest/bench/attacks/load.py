"""Load of honest form from many addresses: three times what the engine can do, ten times, and cancelled requests."""

import asyncio
import itertools
from contextlib import AsyncExitStack

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import ADDRESSES, ANSWER_S, Counts, Target, count_end, source_of
from loadtest.bench.attacks.http2 import Http2Connection, framed

CAPACITY_PER_S = 60.0
"""Requests like those of `typed` that the scripted engine of the benchmark ends in a second, about."""
_LINES = "".join(f"def area_{number}(width, height):\n    return width * height\n\n\n" for number in range(40))
UNLIMITED = ("admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.users_per_peer=0")
"""Settings of a server that serves every request of one attacker."""
_CANCELLED_USERS = 100
_TYPES_ON_S = 0.05
"""How long a request lives before it is cancelled."""


def typed(user: int, sequence: int) -> bytes:
    """Return the framed message of a request as an editor sends it while its user types."""
    message = pb.CompleteRequest(
        session_id=f"user-{user}", sequence=sequence, document_uri=f"file:///{user}.py", language_id="python",
        prefix=f"{_LINES}total_{sequence} = ", suffix="\n\nprint(area_1(2, 3))\n", mode=pb.MODE_SINGLE_LINE,
        max_tokens=16, without_completion_cache=True,
    )  # fmt: skip
    return framed(message.SerializeToString())


async def overload(target: Target, counts: Counts, times: float = 3.0) -> None:
    """Ask `times` the engine's capacity, each request as another of 4 users at each of 64 addresses."""
    num_users, per_s = 4 * ADDRESSES, times * CAPACITY_PER_S
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        connections = [
            await stack.enter_async_context(await Http2Connection.open(target.address, source_of(number)))
            for number in range(ADDRESSES)
        ]

        async def ask(number: int) -> None:
            user = number % num_users
            stream = connections[user % ADDRESSES].call("Complete", (("x-user-id", f"user-{user}"),))
            await stream.send(typed(user, number), ends=True)
            await stream.ended(ANSWER_S)
            count_end(counts, stream)

        for number in itertools.count(1):
            group.create_task(ask(number))
            await asyncio.sleep(1 / per_s)
            if not all(each.is_open for each in connections):
                return


async def cancels(target: Target, counts: Counts) -> None:
    """Ask without end as 100 users of one connection, each of which cancels every second request at once."""
    numbers = itertools.count(1)
    async with await Http2Connection.open(target.address) as connection, asyncio.TaskGroup() as group:

        async def ask_on(user: int) -> None:
            while connection.is_open:
                number = next(numbers)
                stream = connection.call("Complete", (("x-user-id", f"user-{user}"),))
                await stream.send(typed(user, number), ends=True)
                if number % 2:
                    await asyncio.sleep(_TYPES_ON_S)
                    stream.reset()
                    counts["cancelled"] += 1
                else:
                    await stream.ended(ANSWER_S)
                    count_end(counts, stream)

        for user in range(_CANCELLED_USERS):
            group.create_task(ask_on(user))
