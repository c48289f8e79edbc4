"""Keys and certificates for tests of TLS."""

import datetime
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY_S = 86_400.0


@dataclass(frozen=True)
class Identity:
    """A key and its certificate, as PEM files."""

    key: Path
    certificate: Path
    signer: ec.EllipticCurvePrivateKey
    name: x509.Name

    def channel_credentials(self, server: "Identity") -> grpc.ChannelCredentials:
        """Return a client's credentials of this identity, for a server that proves another one."""
        return grpc.ssl_channel_credentials(
            server.certificate.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )

    @property
    def expires_at(self) -> float:
        """When the certificate expires, in Unix seconds."""
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).not_valid_after_utc.timestamp()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that asks for no client certificate."""
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])


MakeIdentity = Callable[..., Identity]
"""Takes a name, the host that the certificate is for, and the issuer; without one it is signed by itself."""


def make_identity_in(
    folder: Path,
    name: str,
    host: str = "127.0.0.1",
    issuer: Identity | None = None,
    lives_s: float = DAY_S,
    *,
    is_authority: bool = False,
) -> Identity:
    """Write a new key and a certificate for a host, an IP address or a DNS name, which expires after `lives_s`.

    One that is signed by itself is an authority's in any case.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    try:
        general: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        general = x509.DNSName(host)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.name if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(seconds=lives_s))
        .add_extension(x509.SubjectAlternativeName([general]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority or issuer is None, path_length=None), critical=True)
        .sign(issuer.signer if issuer else key, hashes.SHA256())
    )
    identity = Identity(folder / f"{name}.key", folder / f"{name}.pem", key, subject)
    identity.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return identity


def revocations_of(issuer: Identity, *revoked: Identity, lasts_s: float = DAY_S) -> bytes:
    """Return an authority's list of revoked certificates as PEM, which is out of date after `lasts_s`."""
    now = datetime.datetime.now(datetime.UTC)
    begin = now - datetime.timedelta(days=1)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.name)
    builder = builder.last_update(begin).next_update(now + datetime.timedelta(seconds=lasts_s))
    for each in revoked:
        serial = x509.load_pem_x509_certificate(each.certificate.read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(begin)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(issuer.signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
