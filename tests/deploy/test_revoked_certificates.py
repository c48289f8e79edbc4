"""Revoked client certificates at the front door: the real Envoy refuses them, and takes a new list while it runs."""

import asyncio
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.deploy.conftest import Site
from tests.deploy.gateway import run_gateway
from tests.support.certificates import Identity, MakeIdentity, revocations_of
from tests.support.models import ROOT
from tests.support.named_users import NamedUsers, names_of
from tests.support.rules import load_rules
from tests.support.server import eventually

pytestmark = pytest.mark.full

ADA = names_of("ada")


@pytest.fixture
def replica(site: Site) -> str:
    address: str = site.replicas[0].ready["address"]
    return address


def replace(path: Path, content: bytes) -> None:
    """Replace a file in one step, as kubelet does."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)


async def is_served(users: NamedUsers) -> bool:
    try:
        return await users.complete(ADA) != ""
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


@dataclass(frozen=True)
class Party:
    """Who is there: a server, two authorities of clients, and a client of each."""

    server: Path
    authority: Identity
    other_authority: Identity
    good: Identity
    revoked: Identity
    others: Identity

    @property
    def lists(self) -> bytes:
        return revocations_of(self.authority, self.revoked)


@pytest.fixture
def party(make_identity: MakeIdentity) -> Party:
    authority, other = make_identity("authority"), make_identity("other-authority")
    clients = (make_identity(name, issuer=issuer) for name, issuer in (("good", authority), ("revoked", authority)))
    return Party(make_identity("server").certificate, authority, other, *clients, make_identity("others", issuer=other))


async def test_a_revoked_certificate_is_refused_at_the_handshake_and_counted(replica: str, party: Party) -> None:
    ca = party.authority.certificate.read_bytes()
    with run_gateway(replica, party.server, ca, party.lists) as gateway:
        assert gateway.alert(party.good.certificate) == ""
        assert gateway.alert(party.revoked.certificate) == "CERTIFICATE_REVOKED"
        async with gateway.users(party.good.certificate) as good, gateway.users(party.revoked.certificate) as revoked:
            assert await is_served(good)
            assert not await is_served(revoked)
        page = gateway.metrics()
    read = {name for rule in load_rules() for name in re.findall(r"\benvoy_listener_ssl_\w+(?=\{)", rule["expr"])}
    assert read == {"envoy_listener_ssl_fail_verify_error", "envoy_listener_ssl_handshake"}
    for name in read:
        counted = re.findall(rf"^{name}{{.*}} (\d+)$", page, re.MULTILINE)
        assert sum(map(int, counted)) > 1, name


async def test_a_new_list_counts_without_a_restart_and_for_connections_that_are_old(replica: str, party: Party) -> None:
    """A list counts at the handshake alone: the age of connections brings the holder of an open one to it."""
    ca, none = party.authority.certificate.read_bytes(), revocations_of(party.authority)
    with run_gateway(replica, party.server, ca, none, max_age="0.3s") as gateway:
        async with gateway.users(party.revoked.certificate) as users:
            stream = await users.open_stream(ADA)
            assert await is_served(users)
            replace(gateway.lists, party.lists)
            await eventually(lambda: gateway.alert(party.revoked.certificate) == "CERTIFICATE_REVOKED")
            while await is_served(users):
                await asyncio.sleep(0.05)
            assert not stream.call.done()  # what the holder has begun ends in good order
        replace(gateway.lists, none)
        await eventually(lambda: gateway.alert(party.revoked.certificate) == "")


@pytest.mark.parametrize(
    ("lists_of", "lasts_s", "alerts"),
    [
        (("authority", "other_authority"), 3600.0, ("", "")),
        (("authority",), 3600.0, ("", "UNKNOWN_CA")),
        (("authority", "other_authority"), -3600.0, ("CERTIFICATE_EXPIRED", "CERTIFICATE_EXPIRED")),
    ],
    ids=["a list of each", "one has none", "out of date"],
)
def test_each_authority_needs_a_list_that_is_not_out_of_date(
    replica: str, party: Party, lists_of: tuple[str, ...], lasts_s: float, alerts: tuple[str, str]
) -> None:
    ca = b"".join(each.certificate.read_bytes() for each in (party.authority, party.other_authority))
    lists = b"".join(revocations_of(getattr(party, name), lasts_s=lasts_s) for name in lists_of)
    with run_gateway(replica, party.server, ca, lists) as gateway:
        assert tuple(gateway.alert(each.certificate) for each in (party.good, party.others)) == alerts


@pytest.mark.parametrize(
    ("ca", "lists_of", "is_admitted"),
    [("root", ("root", "issuing"), True), ("root", ("issuing",), False), ("issuing", ("root", "issuing"), False)],
    ids=["the root and all lists", "no list of the root", "not the root"],
)
def test_a_chain_needs_its_root_and_all_lists(
    replica: str, make_identity: MakeIdentity, ca: str, lists_of: tuple[str, ...], is_admitted: bool
) -> None:
    root = make_identity("root")
    issuing = make_identity("issuing", issuer=root, is_authority=True)
    authorities = {"root": root, "issuing": issuing}
    client = make_identity("client", issuer=issuing).certificate
    client.write_bytes(client.read_bytes() + issuing.certificate.read_bytes())
    lists = b"".join(revocations_of(authorities[name]) for name in lists_of)
    server = make_identity("server").certificate
    with run_gateway(replica, server, authorities[ca].certificate.read_bytes(), lists) as gateway:
        assert (gateway.alert(client) == "") == is_admitted


def test_the_commands_of_the_page_on_security_make_a_list_that_revokes(replica: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    authority, ada = (each for each in blocks if "openssl" in each)
    bob, _, _ = ada.replace("ada", "bob").partition("printf '[ca]")
    folder = tmp_path / "tls"
    for commands, where in ((authority, tmp_path), (bob, folder), (ada, folder)):
        subprocess.run(["sh", "-e", "-c", commands], cwd=where, check=True, capture_output=True, timeout=60)
    ca, lists = ((folder / name).read_bytes() for name in ("ca.pem", "crl.pem"))
    with run_gateway(replica, folder / "server.pem", ca, lists) as gateway:
        gateway.trusted = folder / "ca.pem"
        assert gateway.alert(folder / "bob.pem") == ""
        assert gateway.alert(folder / "ada.pem") == "CERTIFICATE_REVOKED"
