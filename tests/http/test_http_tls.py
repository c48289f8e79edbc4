"""The HTTP listener over TLS: connections in a handshake count, and end in time."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import Identity, MakeIdentity
from tests.support.http_clients import raw_connection, serves_tls
from tests.support.server import RunningServer, eventually, make_config, run_server

MAX_CONNECTIONS = 20


@pytest.fixture
def identity(make_identity: MakeIdentity) -> Identity:
    return make_identity("server")


@asynccontextmanager
async def tls_server(identity: Identity, *settings: str) -> AsyncIterator[RunningServer]:
    tls = (f"server.tls.certificate={identity.certificate}", f"server.tls.key={identity.key}")
    config = make_config("server.http_listen=0.0.0.0:0", *tls, *settings)
    async with run_server(config, lambda: ScriptedEngine(lambda _request: ("alpha", "\n"))) as running:
        yield running


async def test_connections_in_a_handshake_count_make_room_and_end_with_the_server(identity: Identity) -> None:
    limits = (f"server.http_max_connections={MAX_CONNECTIONS}", "server.receive_timeout_s=600")
    async with AsyncExitStack() as stack, tls_server(identity, *limits) as server:
        silent = [await stack.enter_async_context(raw_connection(server)) for _ in range(MAX_CONNECTIONS)]
        assert await serves_tls(server.ready.http_address, identity)
        assert await silent[0].rest() == b""
        further = [await stack.enter_async_context(raw_connection(server)) for _ in range(MAX_CONNECTIONS)]
        for each in silent[1:]:
            assert await each.rest() == b""
        assert await serves_tls(server.ready.http_address, identity)
        assert await further[0].rest() == b""


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["nothing", "beginning", "no TLS"],
)  # fmt: skip
async def test_a_handshake_that_does_not_end_ends_the_connection(identity: Identity, sent: bytes) -> None:
    async with tls_server(identity, "server.receive_timeout_s=0.5") as server:
        async with raw_connection(server) as connection:
            await connection.send(sent)
            await connection.rest()
        await eventually(lambda: serves_tls(server.ready.http_address, identity))
