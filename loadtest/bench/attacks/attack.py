"""What attacks have in common: their target, their counts, and calls that are sent whole."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, Stream, framed

MIB = 1024 * 1024
ANSWER_S = 5.0
ADDRESSES = 64
"""Source addresses of an attack from many."""

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


def _nothing(_folder: Path) -> Prepared:
    return Prepared()


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
    prepare: Callable[[Path], Prepared] = _nothing
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


async def send_one(
    connection: Http2Connection, data: bytes, counts: Counts, metadata: Metadata = (), pause_s: float = 0.0
) -> None:
    """Send a message as a whole call and wait for its end, `pause_s` at least."""
    stream = connection.call("Complete", metadata)
    await stream.send(data, ends=True)
    counts["sent"] += 1
    await asyncio.sleep(pause_s)
    await stream.ended(ANSWER_S)
    count_end(counts, stream)


def small_request(sequence: int = 1, session: str = "attack") -> bytes:
    """Return the framed message of a valid request."""
    message = pb.CompleteRequest(session_id=session, sequence=sequence, prefix=f"x{sequence} = ", max_tokens=8)
    return framed(message.SerializeToString())


def source_of(number: int) -> str:
    """Return one of ADDRESSES addresses of this machine."""
    return f"127.0.1.{1 + number % ADDRESSES}"
