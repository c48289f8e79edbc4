"""The caller that a client's certificate names, and lists of revoked certificates."""

import datetime
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type

from completion_server.auth.authenticator import Authenticator
from completion_server.auth.claims import Result
from completion_server.auth.key_file import editing, new_key
from completion_server.auth.settings import AuthSettings
from completion_server.core.credential import Scope
from completion_server.core.errors import ConfigError
from tests.unit.auth.issuers import Recorder, Wall, accepted, refusal, scopes, told

SPIFFE = x509.UniformResourceIdentifier("spiffe://acme.example/team/compilers/user/ada")
EMAIL = x509.RFC822Name("ada@acme.example")
HOST = x509.DNSName("laptop.acme.example")
BOTH = r"spiffe://acme\.example/team/(?P<tenant>[^/]+)/user/(?P<user>[^/]+)"
TEAM = "compilers"
HOUR_S = 3600


def _name(common: str, kind: _ASN1Type = _ASN1Type.UTF8String) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common, _type=kind)])


def _date(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


class Authority:
    """Makes certificates and lists of revoked ones, with one key for all names of issuers."""

    def __init__(self, key: EllipticCurvePrivateKey, wall: Wall, file: Path) -> None:
        self._key = key
        self._wall = wall
        self.file = file
        """Its own certificates, as `server.tls.client_ca` names them."""
        file.write_bytes(
            b"".join(self.certificate(common=name, issuer=name) for name in ("authority", "another authority"))
        )

    def certificate(
        self, *names: x509.GeneralName, common: str = "ada", serial: int = 0x2A, issuer: str = "authority"
    ) -> bytes:
        """Return a certificate that is valid for an hour."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(_name(issuer))
            .public_key(self._key.public_key())
            .serial_number(serial)
            .not_valid_before(_date(self._wall.now - HOUR_S))
            .not_valid_after(_date(self._wall.now + HOUR_S))
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def revoked(
        self,
        serials: Sequence[int],
        *,
        issuer: str = "authority",
        lasts_s: float = HOUR_S,
        kind: _ASN1Type = _ASN1Type.UTF8String,
    ) -> bytes:
        """Return a list of revoked certificates, whose issuer is a string of a kind."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(_name(issuer, kind))
            .last_update(_date(self._wall.now - 2 * HOUR_S))
            .next_update(_date(self._wall.now + lasts_s))
        )
        for serial in serials:
            entry = (
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(_date(self._wall.now - HOUR_S))
            )
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture
def authority(signers: list[EllipticCurvePrivateKey], wall: Wall, tmp_path: Path) -> Authority:
    return Authority(signers[0], wall, tmp_path / "ca.pem")


def make(wall: Wall, recorder: Recorder | None = None, **settings: Any) -> Authenticator:
    """Return a verifier; its authorities are those beside `crl_file`."""
    auth = AuthSettings(**{"certificate_user": "san_uri"} | settings)
    authorities = [str(Path(auth.crl_file).parent / "ca.pem")]
    return Authenticator(auth, wall, emit=recorder or Recorder(), client_cas=authorities)


@pytest.mark.parametrize(
    ("settings", "user", "tenant"),
    [
        ({}, SPIFFE.value, ""),
        ({"certificate_pattern": BOTH}, "ada", "compilers"),
        ({"certificate_user": "san_email"}, "ada@acme.example", ""),
        (
            {"certificate_user": "san_email", "certificate_pattern": r"(?P<user>.+)@(?P<tenant>.+)"},
            "ada",
            "acme.example",
        ),
        ({"certificate_user": "san_dns", "certificate_pattern": r"(?P<user>\w+)\.acme\.example"}, "laptop", ""),
        ({"certificate_user": "cn"}, "Ada Lovelace", ""),
    ],
)
async def test_a_certificate_names_its_holder(
    authority: Authority, wall: Wall, settings: dict[str, Any], user: str, tenant: str
) -> None:
    callers = make(wall, **settings)
    pem = authority.certificate(SPIFFE, EMAIL, HOST, common="Ada Lovelace")
    found = await accepted(callers, certificate=pem)
    assert told(found) == (user, tenant, "certificate", "2a")
    assert scopes(found) == {Scope.COMPLETE, Scope.FEEDBACK}
    assert await accepted(callers, certificate=pem) is found
    wall.now += HOUR_S
    assert not callers.is_current(found)
    assert await refusal(callers, certificate=pem) is Result.EXPIRED


@pytest.mark.parametrize(
    ("pattern", "admin", "is_admin"),
    [
        ("", "ops", False),
        ("", "ada", True),
        (BOTH, "ada", False),
        (BOTH, "x/ada", False),
        (BOTH, "compilers/ada", True),
    ],
)
async def test_an_administrator_is_named_by_the_settings_with_its_tenant_if_it_has_one(
    authority: Authority, wall: Wall, pattern: str, admin: str, is_admin: bool
) -> None:
    kind = "san_uri" if pattern else "cn"
    callers = make(wall, certificate_user=kind, certificate_pattern=pattern, certificate_admins=(admin,))
    found = await accepted(callers, certificate=authority.certificate(SPIFFE))
    assert (Scope.ADMIN in scopes(found)) == is_admin


async def test_a_certificate_must_name_one_user(authority: Authority, wall: Wall) -> None:
    other = x509.UniformResourceIdentifier("spiffe://other.example/ada")
    callers = make(wall)
    for names in ((), (EMAIL,), (SPIFFE, other)):
        assert await refusal(callers, certificate=authority.certificate(*names)) is Result.CLAIMS
    assert await refusal(callers, certificate=b"-----BEGIN CERTIFICATE-----") is Result.MALFORMED
    assert await refusal(callers) is Result.MISSING
    strict = make(wall, certificate_pattern=BOTH)
    assert (await accepted(strict, certificate=authority.certificate(SPIFFE, other))).user == "ada"
    longer = x509.UniformResourceIdentifier(f"{SPIFFE.value}/root")
    assert await refusal(strict, certificate=authority.certificate(longer)) is Result.CLAIMS


async def test_a_revoked_certificate_ends(authority: Authority, wall: Wall, tmp_path: Path) -> None:
    path = tmp_path / "revoked.pem"
    path.write_bytes(authority.revoked([]))
    callers = make(wall, crl_file=str(path))
    pem, same_serial = authority.certificate(SPIFFE), authority.certificate(SPIFFE, issuer="another authority")
    holder, other = await accepted(callers, certificate=pem), await accepted(callers, certificate=same_serial)
    path.write_bytes(authority.revoked([0x2A]) + authority.revoked([7], issuer="another authority"))
    await callers.poll()
    assert not callers.is_current(holder)
    assert await refusal(callers, certificate=pem) is Result.REVOKED
    assert callers.is_current(other)
    assert await accepted(callers, certificate=same_serial)
    path.write_bytes(authority.revoked([0x2A], kind=_ASN1Type.PrintableString))  # not the certificates' type of string
    await callers.poll()
    assert await refusal(callers, certificate=pem) is Result.REVOKED


async def test_a_broken_or_old_list_replaces_none(
    authority: Authority, wall: Wall, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "revoked.pem"
    with pytest.raises(ConfigError, match=r"auth\.crl_file: no file"):
        make(wall, crl_file=str(path))
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"auth\.crl_file: .* can't be used: it holds no list"):
        make(wall, crl_file=str(path))
    path.write_bytes(authority.revoked([0x2A]))
    recorder = Recorder()
    callers = make(wall, recorder, crl_file=str(path))
    pem = authority.certificate(SPIFFE)
    for content in (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", authority.revoked([], lasts_s=-1)):
        path.write_bytes(content)
        await callers.poll()
        assert await refusal(callers, certificate=pem) is Result.REVOKED
    assert recorder.failures == ["auth.crl_file"] * 2
    caplog.clear()
    wall.now += HOUR_S
    for _ in range(3):
        await callers.poll()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == ["auth.crl_file: a list is out of date; it stays in use until there is a newer one"]
    path.write_bytes(authority.revoked([]))
    await callers.poll()
    assert await accepted(callers, certificate=authority.certificate(SPIFFE))
    assert recorder.failures == ["auth.crl_file"] * 3


async def test_a_list_counts_only_if_an_authority_of_the_clients_signed_it(
    authority: Authority, signers: list[EllipticCurvePrivateKey], wall: Wall, tmp_path: Path
) -> None:
    path, recorder = tmp_path / "revoked.pem", Recorder()
    newer = Authority(signers[1], wall, tmp_path / "newer.pem")
    for forged in (newer.revoked([]), authority.revoked([0x2A]) + authority.revoked([7], issuer="nobody")):
        path.write_bytes(forged)
        with pytest.raises(
            ConfigError, match=r"auth\.crl_file: .*: no authority of server\.tls\.client_ca signed its list"
        ):
            make(wall, crl_file=str(path))
    path.write_bytes(authority.revoked([0x2A]))
    callers = make(wall, recorder, crl_file=str(path))
    pem = authority.certificate(SPIFFE)
    path.write_bytes(newer.revoked([]))
    await callers.poll()
    assert await refusal(callers, certificate=pem) is Result.REVOKED
    assert recorder.failing == {"auth.crl_file"}
    authority.file.write_bytes(authority.file.read_bytes() + newer.file.read_bytes())
    await callers.poll()
    assert await accepted(callers, certificate=pem)
    assert recorder.failing == set()


async def test_a_token_counts_before_a_certificate(authority: Authority, wall: Wall, tmp_path: Path) -> None:
    path, pem = tmp_path / "keys.json", authority.certificate()
    key, token = new_key("grace", "acme", [Scope.COMPLETE], wall.now, None)
    with editing(path) as keys:
        keys[key.id] = key
    callers = make(wall, keys_file=str(path), certificate_user="cn")
    found = [(await accepted(callers, *each)).user for each in ((token, pem), ("", pem), (token,))]
    assert found == ["grace", "ada", "grace"]
    assert await refusal(callers, "cs_x", pem) is Result.MALFORMED, "a bad token is not made up for"
    assert (await accepted(make(wall, certificate_user="cn"), token, pem)).user == "ada"
