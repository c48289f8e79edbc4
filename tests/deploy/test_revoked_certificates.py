"""Revoked client certificates at the front door: the real Envoy refuses them, and takes a new list while it runs."""

import os
import re
import subprocess
from pathlib import Path

import grpc
import pytest

from tests.deploy.conftest import Site
from tests.deploy.gateway import run_gateway
from tests.support.certificates import Identity, MakeIdentity, revocations_of
from tests.support.envoy import fetch
from tests.support.models import ROOT
from tests.support.named_users import NamedUsers, names_of
from tests.support.rules import load_rules
from tests.support.server import eventually

pytestmark = pytest.mark.full

ADA = names_of("ada")
Party = dict[str, Identity]
"""Who is there, by name: a server, two authorities of clients, and their clients good, revoked and others."""


@pytest.fixture
def replica(site: Site) -> str:
    address: str = site.replicas[0].ready["address"]
    return address


@pytest.fixture
def party(make_identity: MakeIdentity) -> Party:
    found = {name: make_identity(name) for name in ("server", "authority", "other")}
    issuers = {"good": "authority", "revoked": "authority", "others": "other"}
    return found | {name: make_identity(name, issuer=found[issuer]) for name, issuer in issuers.items()}


async def is_served(users: NamedUsers) -> bool:
    try:
        return await users.complete(ADA) != ""
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


async def test_a_revoked_certificate_is_refused_and_counted_also_by_a_new_list_and_on_an_old_connection(
    replica: str, party: Party
) -> None:
    """A list counts at the handshake alone: the age of connections brings the holder of an open one to it."""
    authority, revoked = party["authority"], party["revoked"].certificate
    none, lists = revocations_of(authority), revocations_of(authority, party["revoked"])

    def replace(content: bytes) -> None:
        """Replace the file in one step, as kubelet does."""
        new = gateway.lists.with_suffix(".new")
        new.write_bytes(content)
        os.replace(new, gateway.lists)

    certificates = party["server"].certificate, authority.certificate.read_bytes()
    with run_gateway(replica, *certificates, none, max_age="0.3s") as gateway:
        async with gateway.users(revoked) as users:
            stream = await users.open_stream(ADA)
            assert await is_served(users)
            replace(lists)
            await eventually(lambda: gateway.alert(revoked) == "CERTIFICATE_REVOKED")

            async def is_cut_off() -> bool:
                return not await is_served(users)

            await eventually(is_cut_off)
            assert not stream.call.done()  # what the holder has begun ends in good order
        assert gateway.alert(party["good"].certificate) == ""
        page = fetch(gateway.envoy.metrics_address, "/stats/prometheus")[1]
        replace(none)
        await eventually(lambda: gateway.alert(revoked) == "")
    read = {name for rule in load_rules() for name in re.findall(r"\benvoy_listener_ssl_\w+(?=\{)", rule["expr"])}
    assert read == {"envoy_listener_ssl_fail_verify_error", "envoy_listener_ssl_handshake"}
    for name in read:
        assert sum(map(int, re.findall(rf"^{name}{{.*}} (\d+)$", page, re.MULTILINE))) > 1, name


@pytest.mark.parametrize(
    ("lists_of", "lasts_s", "alerts"),
    [
        (("authority", "other"), 3600.0, ("", "")),
        (("authority",), 3600.0, ("", "UNKNOWN_CA")),
        (("authority", "other"), -3600.0, ("CERTIFICATE_EXPIRED", "CERTIFICATE_EXPIRED")),
    ],
    ids=["a list of each", "one has none", "out of date"],
)
def test_each_authority_needs_a_list_that_is_not_out_of_date(
    replica: str, party: Party, lists_of: tuple[str, ...], lasts_s: float, alerts: tuple[str, str]
) -> None:
    ca = b"".join(party[name].certificate.read_bytes() for name in ("authority", "other"))
    lists = b"".join(revocations_of(party[name], lasts_s=lasts_s) for name in lists_of)
    with run_gateway(replica, party["server"].certificate, ca, lists) as gateway:
        assert tuple(gateway.alert(party[name].certificate) for name in ("good", "others")) == alerts


@pytest.mark.parametrize(
    ("ca", "lists_of", "is_admitted"),
    [("root", ("root", "issuing"), True), ("root", ("issuing",), False), ("issuing", ("root", "issuing"), False)],
    ids=["the root and all lists", "no list of the root", "not the root"],
)
def test_a_chain_needs_its_root_and_all_lists(
    replica: str, make_identity: MakeIdentity, ca: str, lists_of: tuple[str, ...], is_admitted: bool
) -> None:
    authorities = {"root": make_identity("root")}
    authorities["issuing"] = make_identity("issuing", issuer=authorities["root"], is_authority=True)
    client = make_identity("client", issuer=authorities["issuing"]).certificate
    client.write_bytes(client.read_bytes() + authorities["issuing"].certificate.read_bytes())
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
        alerts = [gateway.alert(folder / f"{name}.pem") for name in ("bob", "ada")]
    assert alerts == ["", "CERTIFICATE_REVOKED"]
