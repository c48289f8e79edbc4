"""Mutated bytes: protobuf messages, HTTP/2 frames and HTTP bodies."""

import asyncio
import contextlib
import json
import random

from h2.config import H2Configuration
from h2.connection import H2Connection

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import Counts, Target, ask
from loadtest.bench.attacks.http2 import SERVICE, Http2Connection, connect, framed

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
