"""What no client sends: mutated messages, frames and bodies, impossible values, floods of empty frames."""

import asyncio
import contextlib
import math
import random
import struct
from collections.abc import Callable, Iterator

from h2.config import H2Configuration
from h2.connection import H2Connection
from hyperframe.frame import DataFrame, PingFrame, PriorityFrame, SettingsFrame, WindowUpdateFrame

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, framed, headers_of, held_open

_REQUEST = pb.CompleteRequest(
    session_id="mutated", sequence=1, prefix="x = 1\n" * 20, snippets=[pb.ContextSnippet(text="y")] * 3,
    stop=["\n\n"], max_tokens=3, temperature=0.5,
).SerializeToString()  # fmt: skip
PREFACE_BYTES = 24
_NUM = 100_000
NO_NUMBERS = (math.nan, math.inf, -math.inf)
BOMBS: tuple[Metadata, ...] = (
    (("x-user-id", "u" * _NUM),),
    tuple((f"x-{number}", "y" * 100) for number in range(1_000)),
    (("grpc-timeout", "9" * 50 + "H"),),
    (("traceparent", "0" * 7_000),),
    (("x-user-id", "a"),) * 100,
)
"""Metadata that no client sends."""
FRAMES: dict[str, Callable[[int], bytes]] = {
    "ping": lambda number: PingFrame(0, struct.pack(">Q", number)).serialize(),
    "settings": lambda number: SettingsFrame(0, {4: 65_535 + number % 2}).serialize(),
    "window_update": lambda _number: WindowUpdateFrame(0, 1).serialize(),
    "priority": lambda number: PriorityFrame(1 + 2 * (number % 1_000), 0, 1).serialize(),
    "empty_data": lambda _number: DataFrame(1).serialize(),
}
"""The frames of each kind, by name."""
_FRAMES_AT_ONCE, _FLOOD_PAUSE_S = 100, 0.001


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
    h2.send_headers(1, headers_of("Complete"))
    h2.send_data(1, framed(_REQUEST), end_stream=True)
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
    found = bytearray()
    async with held_open(address, data) as reader:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(within_s):
                while piece := await reader.read(1 << 16):
                    found += piece
    return bytes(found)


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


def _request(**fields: object) -> pb.CompleteRequest:
    return pb.CompleteRequest(session_id="bad", sequence=1, prefix="x = ", **fields)  # type: ignore[arg-type]


def bad_bodies() -> Iterator[bytes]:
    """Yield HTTP bodies of the same kinds, and some that nest deeply."""
    for name in ("temperature", "n_predict", "seed", "t_max_predict_ms"):
        for value in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5_000):
            yield f'{{"prompt":"x","{name}":{value}}}'.encode()
    yield b'{"prompt":"x","stop":[' + b'"x",' * _NUM + b'"x"]}'
    for opening in (b"[", b'{"a":', b'{"prompt":['):
        yield opening * _NUM
    yield b'{"prompt":"x","n_predict":' + b"9" * _NUM + b"}"


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
