"""Certificates that change while clients are connected: two channels for a while, and no request is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, Endpoint, Regions, RegionSettings
from tests.support.certificates import Identity, MakeIdentity
from tests.support.fault_proxy import FaultProxy
from tests.support.regions import ENDLESS_REQUEST, QUICK, TEXT, script
from tests.support.server import endless_config, endless_engine, eventually, run_server

REQUEST = pb.CompleteRequest(prefix="x = ")
SETTINGS = RegionSettings(certificate_interval_s=0.02)


@dataclass
class Secured:
    """A server with mutual TLS behind a proxy, and the client's files."""

    proxy: FaultProxy
    authority: Identity
    ca: Path
    certificate: Path
    key: Path

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.proxy.address, self.ca, self.certificate, self.key)

    def write(self, identity: Identity) -> None:
        """Replace the client's files one after the other, as a tool that knows of no transactions."""
        self.certificate.write_bytes(identity.certificate.read_bytes())
        self.key.write_bytes(identity.key.read_bytes())


@asynccontextmanager
async def secured(make_identity: MakeIdentity, folder: Path) -> AsyncIterator[Secured]:
    """Run a server that admits the clients of one authority."""
    ours, authority = make_identity("server"), make_identity("authority")
    tls = (ours.certificate, ours.key, authority.certificate)
    config = endless_config(
        *(f"server.tls.{name}={path}" for name, path in zip(("certificate", "key", "client_ca"), tls, strict=True))
    )
    async with (
        run_server(config, lambda: endless_engine(script, QUICK)) as server,
        FaultProxy(server.ready.address) as proxy,
    ):
        found = Secured(proxy, authority, ours.certificate, folder / "client.pem", folder / "client-key.pem")
        found.write(make_identity("first", issuer=authority))
        yield found


async def test_a_new_certificate_gets_a_connection_and_the_old_one_is_drained(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with (
        secured(make_identity, tmp_path) as server,
        Regions([server.endpoint], settings=SETTINGS) as regions,
        CompletionClient(regions, user="ada").session() as session,
    ):
        pending = session.submit_nowait(ENDLESS_REQUEST)
        texts = aiter(pending)
        await anext(texts)
        assert server.proxy.num_made == 1
        second = make_identity("second", issuer=server.authority)
        server.write(second)
        await eventually(lambda: server.proxy.num_made >= 2)
        await eventually(lambda: server.proxy.num_open == 2)
        assert (await CompletionClient(regions, user="bob").complete(REQUEST, timeout_s=5.0)).text == TEXT
        for _ in range(3):
            assert await anext(texts), "the request on the old connection goes on"
        pending.cancel_nowait()
        assert (await pending.result()).finish_reason == "cancelled"
        assert (await session.complete(REQUEST, timeout_s=5.0)).text == TEXT
        await eventually(lambda: server.proxy.num_open == 1)


async def test_files_that_cannot_be_used_change_nothing(
    make_identity: MakeIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = RegionSettings(certificate_interval_s=0.02)
    async with (
        secured(make_identity, tmp_path) as server,
        Regions([server.endpoint], settings=settings) as regions,
    ):
        view = CompletionClient(regions, user="ada")
        await view.complete(REQUEST, timeout_s=5.0)
        second = make_identity("second", issuer=server.authority)
        server.certificate.write_bytes(second.certificate.read_bytes())  # the key is still that of the first
        await eventually(lambda: "no connection with the new TLS files yet" in caplog.text)
        assert server.proxy.address in caplog.text
        assert (await view.complete(REQUEST, timeout_s=5.0)).text == TEXT
        server.certificate.unlink()
        await asyncio.sleep(0.1)
        assert (await view.complete(REQUEST, timeout_s=5.0)).text == TEXT
        num_made = server.proxy.num_made
        server.write(second)
        await eventually(lambda: server.proxy.num_made > num_made and server.proxy.num_open == 1)
        assert (await view.complete(REQUEST, timeout_s=5.0)).text == TEXT
