"""The HTTP listener over TLS: connections in a handshake count, and end in time."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

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


async def test_a_client_certificate_names_the_user_of_a_request(make_identity: MakeIdentity) -> None:
    authority = make_identity("authority")
    server, ada = make_identity("server", issuer=authority), make_identity("ada", issuer=authority)
    settings = (f"server.tls.client_ca={authority.certificate}", "auth.certificate_user=cn")
    asked = {"prompt": "x", "user": "another"}
    async with tls_server(server, *settings) as running, http_session() as session:
        url = f"https://127.0.0.1:{running.ready.http_address.rpartition(':')[2]}"
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(ada.certificate, ada.key)
        async with session.post(f"{url}/v1/completions", json=asked, ssl=context) as answer:
            assert (answer.status, (await answer.json())["choices"][0]["text"]) == (200, "alpha")
        async with session.get(f"{url}/v1/models", ssl=context) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(("host", "status"), [("Completions.example:8012", 200), ("evil.example:8012", 403)])
async def test_a_name_of_the_certificate_is_the_servers_own(
    make_identity: MakeIdentity, host: str, status: int
) -> None:
    identity = make_identity("server", "completions.example")
    context = ssl.create_default_context(cafile=str(identity.certificate))
    async with tls_server(identity) as running, http_session() as session:
        url = f"https://127.0.0.1:{running.ready.http_address.rpartition(':')[2]}/health"
        names = {"headers": {"host": host}, "server_hostname": "completions.example"}
        async with session.get(url, ssl=context, **names) as answer:
            assert answer.status == status
