"""Fields that are too many, too deep or no numbers: metadata bombs, stop strings, deep JSON, NaN and infinity."""

import asyncio
import itertools
import math
from collections.abc import Iterator

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import SMALL_REQUEST, Counts, Target, ask
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, framed
from loadtest.bench.attacks.mutation import exchange, http_request

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
