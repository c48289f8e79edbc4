"""HTTP for tests: plugins' requests, and connections that send what no client would."""

import asyncio
import io
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.support.certificates import Identity
from tests.support.server import RunningServer

ANSWERS_WITHIN_S = 30.0
"""For machines that are busy with other things."""
HTTP = "server.http_listen=127.0.0.1:0"
PAGE_ADMIN = "server.http_admin=true"


@dataclass
class HttpAnswer:
    """What came back for a request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The documents of a stream of server-sent events; "[DONE]" stays as it is."""
        lines = [line.removeprefix("data: ") for line in self.text.split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


def _lower(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


@asynccontextmanager
async def http_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client whose requests have an end."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)) as session:
        yield session


async def post(server: RunningServer, path: str, body: Any, headers: dict[str, str] | None = None) -> HttpAnswer:
    """Post a body over a connection of its own, as curl does."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"http://{server.ready.http_address}{path}"
    async with http_session() as session, session.post(url, data=io.BytesIO(data), headers=headers) as answer:
        return HttpAnswer(answer.status, _lower(answer), await answer.text())


async def get(server: RunningServer, path: str, headers: dict[str, str] | None = None) -> HttpAnswer:
    """Get a document."""
    url = f"http://{server.ready.http_address}{path}"
    async with http_session() as session, session.get(url, headers=headers) as answer:
        return HttpAnswer(answer.status, _lower(answer), await answer.text())


@dataclass
class RawConnection:
    """A connection of which the test writes each byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def read_little(self) -> None:
        """Let the system hold no more than a few kilobytes that are not read; else a test sends it megabytes."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self, within_s: float = ANSWERS_WITHIN_S) -> bytes:
        """Return what the server sends until it closes the connection; fail if it does not."""
        try:
            async with asyncio.timeout(within_s):
                return await self.reader.read()
        except ConnectionResetError:
            return b""
        except TimeoutError:
            raise AssertionError(f"the server did not close the connection within {within_s} s") from None

    async def status(self) -> int:
        """Return the status of the next answer."""
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            line = await self.reader.readline()
        return int(line.split()[1])


@asynccontextmanager
async def connection_to(address: str) -> AsyncIterator[RawConnection]:
    """Open a connection, and close it afterwards."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()


def raw_connection(server: RunningServer) -> AbstractAsyncContextManager[RawConnection]:
    """Open a connection to a server, and close it afterwards."""
    return connection_to(server.ready.http_address)


async def serves_tls(address: str, identity: Identity) -> bool:
    """Return whether the listener of a server with this identity answers a new connection."""
    url = f"https://127.0.0.1:{address.rpartition(':')[2]}/health"
    trusted = ssl.create_default_context(cafile=str(identity.certificate))
    try:
        async with http_session() as session, session.get(url, ssl=trusted) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def head(path: str, *headers: str) -> bytes:
    """Return the head of a POST with further headers."""
    return "\r\n".join((f"POST {path} HTTP/1.1", "host: localhost", *headers, "", "")).encode()


@asynccontextmanager
async def streaming(
    server: RunningServer, path: str, body: dict[str, Any], headers: dict[str, str]
) -> AsyncIterator[RawConnection]:
    """Open a stream, of which the test reads each byte: HTTP libraries drop some of them if the stream has no end."""
    data = json.dumps(body | {"stream": True}).encode()
    async with raw_connection(server) as connection:
        fields = (f"{name}: {value}" for name, value in headers.items())
        await connection.send(head(path, f"content-length: {len(data)}", *fields) + data)
        yield connection


async def first_event(connection: RawConnection) -> bytes:
    """Wait for the head and the first event of a stream."""
    async with asyncio.timeout(ANSWERS_WITHIN_S):
        return await connection.reader.readuntil(b"data: ") + await connection.reader.readuntil(b"\n\n")


async def broken_off(connection: RawConnection) -> list[Any]:
    """Return the remaining events of a stream that has no end: the server closes the connection before."""
    rest = await connection.rest()
    assert not rest.endswith(b"0\r\n\r\n"), "the body is whole"
    return [json.loads(each) for each in re.findall(rb"data: (.*)\n\n", rest)]
