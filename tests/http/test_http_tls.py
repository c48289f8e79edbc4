"""The HTTP listener over TLS: connections in a handshake count and end in time; a certificate names its user."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import Identity, MakeIdentity
from tests.support.http_clients import http_session, raw_connection, serves_tls
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


async def test_a_handshake_that_does_not_end_ends_the_connection(identity: Identity) -> None:
    async with tls_server(identity, "server.receive_timeout_s=0.5") as server:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n"):
            async with raw_connection(server) as connection:
                await connection.send(sent)
                await connection.rest()
        await eventually(lambda: serves_tls(server.ready.http_address, identity))


def origin_of(server: RunningServer) -> str:
    return f"https://127.0.0.1:{server.ready.http_address.rpartition(':')[2]}"


async def test_a_name_of_the_certificate_is_the_servers_own(make_identity: MakeIdentity) -> None:
    identity = make_identity("server", "completions.example")
    context = ssl.create_default_context(cafile=str(identity.certificate))
    async with tls_server(identity) as running, http_session() as session:
        for host, status in (("Completions.example:8012", 200), ("evil.example:8012", 403)):
            names = {"headers": {"host": host}, "server_hostname": "completions.example"}
            async with session.get(f"{origin_of(running)}/health", ssl=context, **names) as answer:
                assert answer.status == status


@asynccontextmanager
async def client_of(server: RunningServer, ours: Identity, client: Identity) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client that shows a certificate; its paths are those of the server."""
    context = ssl.create_default_context(cafile=str(ours.certificate))
    context.load_cert_chain(client.certificate, client.key)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(origin_of(server), connector=connector) as session:
        yield session


async def test_a_client_s_certificate_names_its_user(identity: Identity, make_identity: MakeIdentity) -> None:
    authority = make_identity("authority")
    ada, nobody = (make_identity(name, issuer=authority) for name in ("ada", "nobody"))
    ca = f"server.tls.client_ca={authority.certificate}"
    rules = ("auth.certificate_user=cn", "auth.certificate_pattern=(?P<user>ada)")
    async with tls_server(identity, ca, *rules) as server:
        for client, status in ((ada, 200), (nobody, 401)):
            async with client_of(server, identity, client) as session:
                for path in ("/infill", "/v1/completions"):
                    async with session.post(path, json={"prompt": "x"}) as answer:
                        assert answer.status == status
                for path in ("/v1/models", "/admin/status"):
                    async with session.get(path) as answer:
                        assert answer.status == status


async def test_a_certificate_that_is_no_credential_leaves_a_page_asked_for_its_token(
    identity: Identity, make_identity: MakeIdentity, tmp_path: Path
) -> None:
    authority = make_identity("authority")
    ada = make_identity("ada", issuer=authority)
    settings = (f"server.tls.client_ca={authority.certificate}", f"auth.keys_file={tmp_path / 'keys.json'}")
    async with (
        tls_server(identity, *settings) as server,
        client_of(server, identity, ada) as session,
        session.get("/admin/status") as answer,
    ):
        assert answer.status == 401
