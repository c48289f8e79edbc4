"""Certificates of the listeners are replaced under load: no connection fails and no request is lost."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
from cryptography import x509

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.core import certificates
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import DAY_S, Identity, make_identity_in
from tests.support.server import RunningServer, ask, eventually, make_config, request, run_server

EXPIRY = "completion_tls_certificate_not_after_timestamp_seconds"
FAILED = "completion_tls_certificate_reload_failed"
LISTENERS = ("public", "admin")
NUM_CLIENTS = 3


@dataclass
class Site:
    """A server with TLS on all listeners, and the authority that its clients trust."""

    server: RunningServer
    authority: Identity
    folder: Path

    def issue(self, number: int) -> Identity:
        """Return a new certificate. A later one expires later."""
        return make_identity_in(self.folder, f"server-{number}", issuer=self.authority, lives_s=DAY_S + number)

    def install(self, certificate: Path, key: Path) -> None:
        """Replace both files as a careless script does: one after the other, and not atomically."""
        (self.folder / "tls.crt").write_bytes(certificate.read_bytes())
        (self.folder / "tls.key").write_bytes(key.read_bytes())

    async def is_used(self, identity: Identity) -> bool:
        return all(self.server.count(EXPIRY, listener=each) == identity.expires_at for each in LISTENERS)

    async def presented_at(self, address: str) -> int:
        """Return the serial number of the certificate that a new connection gets."""
        host, port = "127.0.0.1", int(address.rpartition(":")[2])
        pem = await asyncio.to_thread(ssl.get_server_certificate, (host, port), timeout=20)
        return x509.load_pem_x509_certificate(pem.encode()).serial_number


@asynccontextmanager
async def running_site(tmp_path: Path) -> AsyncIterator[Site]:
    authority, folder = make_identity_in(tmp_path, "authority"), tmp_path / "tls"
    folder.mkdir()
    first = make_identity_in(folder, "server-0", issuer=authority)
    (folder / "tls.crt").write_bytes(first.certificate.read_bytes())
    (folder / "tls.key").write_bytes(first.key.read_bytes())
    config = make_config(
        *(f"server.{section}.certificate={folder / 'tls.crt'}" for section in ("tls", "admin_tls")),
        *(f"server.{section}.key={folder / 'tls.key'}" for section in ("tls", "admin_tls")),
        "server.http_listen=0.0.0.0:0", "admission.user_requests_per_s=0",
    )  # fmt: skip
    async with run_server(config, lambda: ScriptedEngine(lambda _request: ("alpha", "\n"))) as server:
        yield Site(server, authority, folder)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_EVERY_S", 0.002)


async def grpc_client(site: Site, failures: list[str], is_over: asyncio.Event) -> int:
    """Ask on a new connection each time; return how often."""
    credentials = grpc.ssl_channel_credentials(site.authority.certificate.read_bytes())
    num_asked = 0
    while not is_over.is_set():
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.secure_channel(site.server.ready.address, credentials, options=options) as channel:
            answer = await ask(CompletionServiceStub(channel), request(max_tokens=4))
        num_asked += 1
        if answer.code is not grpc.StatusCode.OK:
            failures.append(f"{answer.code}: {answer.details}")
    return num_asked


async def held_client(site: Site, failures: list[str], is_over: asyncio.Event) -> int:
    """Ask on one connection that outlives every rotation."""
    credentials = grpc.ssl_channel_credentials(site.authority.certificate.read_bytes())
    num_asked = 0
    async with grpc.aio.secure_channel(site.server.ready.address, credentials) as channel:
        while not is_over.is_set():
            answer = await ask(CompletionServiceStub(channel), request(max_tokens=4, sequence=num_asked))
            num_asked += 1
            if answer.code is not grpc.StatusCode.OK:
                failures.append(f"{answer.code}: {answer.details}")
    return num_asked


async def http_client(site: Site, failures: list[str], is_over: asyncio.Event) -> int:
    """Ask over HTTPS on a new connection each time."""
    trusted = ssl.create_default_context(cafile=str(site.authority.certificate))
    url = f"https://127.0.0.1:{site.server.ready.http_address.rpartition(':')[2]}/v1/completions"
    num_asked = 0
    while not is_over.is_set():
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(url, json={"prompt": "x = "}, ssl=trusted) as answer,
            ):
                await answer.read()
                if answer.status != 200:
                    failures.append(f"HTTP {answer.status}")
        except aiohttp.ClientError as error:
            failures.append(repr(error))
        num_asked += 1
    return num_asked


@pytest.mark.parametrize("num_rotations", [5, pytest.param(1000, marks=pytest.mark.full)])
async def test_rotations_under_load_lose_nothing(tmp_path: Path, num_rotations: int) -> None:
    failures: list[str] = []
    is_over = asyncio.Event()
    async with running_site(tmp_path) as site:
        clients = [
            asyncio.create_task(client(site, failures, is_over))
            for client in (*(grpc_client,) * NUM_CLIENTS, held_client, http_client)
        ]
        for number in range(1, num_rotations + 1):
            identity = site.issue(number)
            site.install(identity.certificate, identity.key)
            await eventually(lambda identity=identity: site.is_used(identity))  # type: ignore[misc]
        ready = site.server.ready
        serial = x509.load_pem_x509_certificate(identity.certificate.read_bytes()).serial_number
        for address in (ready.address, ready.admin_address, ready.http_address):
            assert await site.presented_at(address) == serial
        is_over.set()
        done, late = await asyncio.wait(clients, timeout=60)
        assert not late, "a client did not end"
        assert failures == []
        assert all(each.result() > 0 for each in done)


async def test_a_bad_pair_is_told_and_the_last_good_one_serves_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_site(tmp_path) as site:
        good, other, next_good = (site.issue(number) for number in (1, 2, 3))
        site.install(good.certificate, good.key)
        await eventually(lambda: site.is_used(good))
        with caplog.at_level(logging.ERROR, "completion_server"):
            site.install(other.certificate, good.key)
            await eventually(lambda: all(site.server.count(FAILED, listener=each) == 1 for each in LISTENERS))
            assert await site.is_used(good)
            credentials = grpc.ssl_channel_credentials(site.authority.certificate.read_bytes())
            async with grpc.aio.secure_channel(site.server.ready.address, credentials) as channel:
                answer = await ask(CompletionServiceStub(channel), request(max_tokens=4))
            assert answer.code is grpc.StatusCode.OK
        told = [line for line in caplog.messages if "can't be used; the one until" in line]
        assert [line.partition(":")[0] for line in sorted(told)] == ["server.admin_tls", "server.tls"]
        site.install(next_good.certificate, next_good.key)
        await eventually(lambda: site.is_used(next_good))
        assert all(site.server.count(FAILED, listener=each) == 0 for each in LISTENERS)
