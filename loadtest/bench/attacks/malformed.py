"""What no client sends: mutated messages, frames and bodies, impossible values, floods of empty frames."""

import asyncio
import contextlib
import itertools
import json
import math
import random
import struct
from collections.abc import Callable, Iterator

from h2.config import H2Configuration
from h2.connection import H2Connection

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import SMALL_REQUEST, Counts, Target, ask
from loadtest.bench.attacks.http2 import SERVICE, Http2Connection, Metadata, connect, framed

PREFACE_BYTES = 24
_CONNECTIONS = 16
_OPEN_S = 0.1
"""How long to wait for the end of a connection: some mutations leave a frame that is not whole."""
_READ_BYTES = 1 << 16
_REQUEST = pb.CompleteRequest(
    session_id="mutated", sequence=1, prefix="x = 1\n" * 20, snippets=[pb.ContextSnippet(text="y")] * 3,
    stop=["\n\n"], max_tokens=3, temperature=0.5,
)  # fmt: skip
_BODY = json.dumps({"prompt": "x = ", "suffix": "\n", "stop": ["a"], "n_predict": 5, "temperature": 0.5}).encode()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with some of them changed, dropped, doubled or cut off."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(found) or 1)
        match chance.randrange(4):
            case 0:
                found[place : place + 1] = [chance.randrange(256)]
            case 1:
                del found[place : place + 1]
            case 2:
                found[place:place] = found[place : place + chance.randint(1, 30)]
            case _:
                del found[place + 1 :]
    return bytes(found)


def frames_of_a_call() -> bytes:
    """Return all that a client sends on a new connection for one call, the preface first."""
    h2 = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
    h2.initiate_connection()
    pseudo = ((":method", "POST"), (":scheme", "http"), (":path", f"{SERVICE}/Complete"), (":authority", "server"))
    h2.send_headers(1, [*pseudo, ("content-type", "application/grpc"), ("te", "trailers")])
    h2.send_data(1, framed(_REQUEST.SerializeToString()), end_stream=True)
    return h2.data_to_send()


def http_request(body: bytes) -> bytes:
    """Return a whole HTTP/1.1 request with this body."""
    head = f"POST /infill HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def exchange(address: str, data: bytes, within_s: float = 20.0) -> bytes:
    """Send bytes on a new connection, and return what comes back until the server closes it, or the time ends.

    Raises:
        OSError: no server listens.

    """
    reader, writer = await connect(address)
    found = bytearray()
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(data)
        async with asyncio.timeout(within_s):
            while part := await reader.read(_READ_BYTES):
                found += part
    writer.close()
    return bytes(found)


async def mutations(target: Target, counts: Counts) -> None:
    """Send mutated messages on one connection, and mutated frames and bodies on connections of their own."""

    async def messages(connection: Http2Connection, chance: random.Random) -> None:
        while connection.is_open:
            await ask(connection, framed(mutated(_REQUEST.SerializeToString(), chance)), counts)

    async def connections(chance: random.Random) -> None:
        whole = frames_of_a_call()
        while True:
            frames = whole[:PREFACE_BYTES] + mutated(whole[PREFACE_BYTES:], chance)
            await exchange(target.address, frames, within_s=_OPEN_S)
            answer = await exchange(target.http_address, http_request(mutated(_BODY, chance)))
            counts["frames"] += 1
            counts[f"http_{answer[9:12].decode('ascii', 'replace') or 'none'}"] += 1

    async with await Http2Connection.open(target.address) as connection, asyncio.TaskGroup() as group:
        group.create_task(messages(connection, random.Random(0)))
        for number in range(1, 1 + _CONNECTIONS):
            group.create_task(connections(random.Random(number)))


_NUM = 100_000
_PAUSE_S = 0.005
NO_NUMBERS = (math.nan, math.inf, -math.inf)
BOMBS: tuple[Metadata, ...] = (
    (("x-user-id", "u" * _NUM),),
    tuple((f"x-{number}", "y" * 100) for number in range(1_000)),
    (("grpc-timeout", "9" * 50 + "H"),),
    (("traceparent", "0" * 7_000),),
    (("x-user-id", "a"),) * 100,
)
"""Metadata that no client sends."""


def bad_messages() -> Iterator[pb.CompleteRequest]:
    """Yield requests with a bad value in each of the fields that hold numbers, and with too many stop strings."""
    for bad in NO_NUMBERS:
        yield _request(temperature=bad)
        yield _request(snippets=[pb.ContextSnippet(text="y", score=bad)])
    yield _request(max_tokens=-1)
    yield _request(max_tokens=2**31 - 1)
    yield _request(seed=2**64 - 1)
    yield _request(timeout_ms=2**32 - 1)
    yield _request(stop=["x"] * _NUM)
    yield _request(stop=["x" * _NUM])


def bad_bodies() -> Iterator[bytes]:
    """Yield HTTP bodies of the same kinds, and some that nest deeply."""
    for name in ("temperature", "n_predict", "seed", "t_max_predict_ms"):
        for value in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5_000):
            yield f'{{"prompt":"x","{name}":{value}}}'.encode()
    yield b'{"prompt":"x","stop":[' + b'"x",' * _NUM + b'"x"]}'
    for opening in (b"[", b'{"a":', b'{"prompt":['):
        yield opening * _NUM
    yield b'{"prompt":"x","n_predict":' + b"9" * _NUM + b"}"


def _request(**fields: object) -> pb.CompleteRequest:
    return pb.CompleteRequest(session_id="bad", sequence=1, prefix="x = ", **fields)  # type: ignore[arg-type]


async def bad_fields(target: Target, counts: Counts) -> None:
    """Send all of them in turn."""
    calls: list[tuple[bytes, Metadata]] = [(framed(each.SerializeToString()), ()) for each in bad_messages()]
    calls += [(SMALL_REQUEST, bomb) for bomb in BOMBS]
    bodies = [http_request(each) for each in bad_bodies()]
    for (data, metadata), body in zip(itertools.cycle(calls), itertools.cycle(bodies), strict=False):
        async with await Http2Connection.open(target.address) as connection:
            await ask(connection, data, counts, metadata)
        answer = await exchange(target.http_address, body)
        counts[f"http_{answer[9:12].decode('ascii', 'replace') or 'none'}"] += 1
        await asyncio.sleep(_PAUSE_S)


_FRAMES_AT_ONCE = 100
_FLOOD_PAUSE_S = 0.001


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
        if number % _FRAMES_AT_ONCE == 0:
            with contextlib.suppress(OSError):
                await connection.drain()
            await asyncio.sleep(_FLOOD_PAUSE_S)
    return num


async def pings(target: Target, counts: Counts) -> None:
    """Flood a new connection with each kind of frame in turn."""
    for kind in FRAMES:
        async with await Http2Connection.open(target.address) as connection:
            stream = connection.call("Session")
            counts[kind] += await flood(connection, kind, 20_000)
            counts[f"{kind}_closed"] += not connection.is_open
            stream.reset()
