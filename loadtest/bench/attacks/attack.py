"""What attacks have in common: their target, their counts, and calls that are sent whole."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, Stream, framed

MIB = 1024 * 1024
SMALL_REQUEST = framed(
    pb.CompleteRequest(session_id="attack", sequence=1, prefix="x = ", max_tokens=8).SerializeToString()
)
"""The message of a valid request."""
ADDRESSES = 64
"""Source addresses of an attack from many."""
_LINES = "".join(f"def area_{number}(width, height):\n    return width * height\n\n\n" for number in range(40))
_HELD_S = 3600.0

Counts = Counter[str]
"""Counts of an attack's actions and their results, for the report."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server to attack."""

    address: str
    """HOST:PORT of gRPC."""
    http_address: str
    """HOST:PORT of plain HTTP."""
    folder: Path
    """A folder of the run, with what the attack's `prepare` has made."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an attack needs before its server starts."""

    overrides: tuple[str, ...] = ()
    """Settings of the server."""
    honest_metadata: tuple[Metadata, ...] = ()
    """What honest users send with each call besides their names, one after another in turn."""


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack on a server."""

    about: str
    """One-line description."""
    run: Callable[[Target, Counts], Awaitable[None]]
    """Attacks the server until it is cancelled, or ends."""
    overrides: tuple[str, ...] = ()
    """Settings of the server that the attack needs."""
    seconds: float = 10.0
    """Its length, if the run does not set another."""
    prepare: Callable[[Path], Prepared] = lambda _folder: Prepared()
    """Makes what it needs in a folder."""


async def keep_on(attack: Attack, target: Target, counts: Counts) -> None:
    """Run an attack, and run it again when the server closes the connection."""
    while True:
        try:
            await attack.run(target, counts)
        except* OSError:
            counts["connections_lost"] += 1
        await asyncio.sleep(0.01)


def count_end(counts: Counts, stream: Stream) -> None:
    """Count the status of a call."""
    counts[f"status_{'none' if stream.status in {None, -1} else stream.status}"] += 1


async def ask(connection: Http2Connection, data: bytes, counts: Counts, metadata: Metadata = ()) -> None:
    """Send a message as a whole call, wait for its end and count it."""
    count_end(counts, await connection.ask(data, metadata))


async def ask_at_rate(
    per_s: float, ask: Callable[[int], Coroutine[Any, Any, None]], *connections: Http2Connection
) -> None:
    """Begin `ask(1)`, `ask(2)` and so on, `per_s` times a second, until a connection is closed."""
    async with asyncio.TaskGroup() as group:
        for number in itertools.count(1):
            group.create_task(ask(number))
            await asyncio.sleep(1 / per_s)
            if not all(each.is_open for each in connections):
                return


async def hold(connection: Http2Connection, method: str, data: bytes, counts: Counts) -> None:
    """Hold a call that has sent `data`, which is no whole message; call again when the server ends it."""
    while connection.is_open:
        stream = connection.call(method)
        counts["held" if await stream.send(data) else "cut"] += 1
        await stream.ended(_HELD_S)
        count_end(counts, stream)


def typed(name: str, sequence: int, **fields: Any) -> pb.CompleteRequest:  # noqa: ANN401 - any of the message
    """Return a request as the editor of a user sends it while the user types."""
    return pb.CompleteRequest(
        session_id=name, sequence=sequence, document_uri=f"file:///{name}.py", language_id="python",
        prefix=f"{_LINES}total_{sequence} = ", suffix="\n\nprint(area_1(2, 3))\n", mode=pb.MODE_SINGLE_LINE,
        max_tokens=16, **fields,
    )  # fmt: skip


def source_of(number: int) -> str:
    """Return one of ADDRESSES addresses of this machine."""
    return f"127.0.1.{1 + number % ADDRESSES}"
