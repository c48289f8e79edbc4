"""Finds the caller in a client's certificate, which the TLS library has verified, and looks for it in lists (CRL)."""

import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from completion_server.auth.claims import RefusedCredentialError, Result, is_name
from completion_server.auth.settings import AuthSettings
from completion_server.core.credential import Credential, Scope
from completion_server.core.request import Caller
from completion_server.core.watched_file import Report, WatchedFile

logger = logging.getLogger(__name__)

KIND = "certificate"
_MAX_CERTIFICATES = 4096
_CRL_KEY = "auth.crl_file"
_CRL = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_FINGERPRINT_DIGITS = 16
_BROKEN = (ValueError, x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType)


@dataclass(frozen=True, slots=True)
class Revocations:
    """The certificates that authorities have revoked."""

    revoked: frozenset[tuple[str, str]] = frozenset()
    """Fingerprints of the authorities' names, and serial numbers in hexadecimal digits."""
    expires_at: float = math.inf
    """Unix time in seconds at which the first of the lists is out of date."""


class Certificates:
    """Finds callers in certificates; for one that was seen before it is a lookup."""

    def __init__(
        self, settings: AuthSettings, client_cas: Sequence[str], wall: Callable[[], float], report: Report
    ) -> None:
        """Read the lists of revoked certificates, which authorities in the files `client_cas` must have signed.

        `wall` returns Unix seconds.

        Raises:
            ConfigError: they can't be used.

        """
        self._settings = settings
        self._pattern = re.compile(settings.certificate_pattern or "(?P<user>.+)", re.DOTALL)
        self._wall = wall
        self._report = report
        self._read = lru_cache(_MAX_CERTIFICATES)(self._read_unseen)
        self._is_out_of_date = False
        """Whether the lists in use are out of date, which is logged once."""
        self._crl: WatchedFile[Revocations] | None = None
        if settings.crl_file:

            def parse(data: bytes) -> Revocations:
                certificates = (x509.load_pem_x509_certificates(Path(name).read_bytes()) for name in client_cas)
                return parse_revocations(data, tuple(chain.from_iterable(certificates)))

            self._crl = WatchedFile(_CRL_KEY, settings.crl_file, parse, report, Revocations(), client_cas)
            self._crl.load()
            self._check_date(self._crl.content)

    async def poll(self) -> None:
        """Read the lists again if they changed. Those that are out of date replace none."""
        if self._crl is None:
            return
        last = self._crl.content
        if await self._crl.poll() and self._crl.content.expires_at <= self._wall():
            if last.expires_at > self._crl.content.expires_at:
                self._crl.content = last
            logger.error("%s: the new list is out of date", _CRL_KEY)
            self._report(_CRL_KEY, True)
        self._check_date(self._crl.content)

    def verify(self, pem: bytes) -> Caller:
        """Return the holder of a certificate, which the TLS library has verified.

        Raises:
            RefusedCredentialError: it names nobody, or has expired or was revoked since the handshake.

        """
        caller, credential = self._read(pem)
        if self._is_revoked(credential):
            raise RefusedCredentialError(Result.REVOKED, "the client's certificate was revoked")
        if self._wall() >= credential.expires_at:
            raise RefusedCredentialError(Result.EXPIRED, "the client's certificate has expired")
        return caller

    def is_current(self, _caller: Caller, credential: Credential) -> bool:
        """Return whether the certificate of a caller has not expired and is not revoked."""
        return self._wall() < credential.expires_at and not self._is_revoked(credential)

    def _is_revoked(self, credential: Credential) -> bool:
        name = (credential.fingerprint, credential.name)
        return self._crl is not None and name in self._crl.content.revoked

    def _check_date(self, lists: Revocations) -> None:
        was_out_of_date, self._is_out_of_date = self._is_out_of_date, self._wall() >= lists.expires_at
        if self._is_out_of_date and not was_out_of_date:
            logger.error("%s: a list is out of date; it stays in use until there is a newer one", _CRL_KEY)
            self._report(_CRL_KEY, True)

    def _read_unseen(self, pem: bytes) -> tuple[Caller, Credential]:
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            parts = _parts(certificate, self._settings.certificate_user)
            fingerprint = _fingerprint(certificate.issuer)
        except _BROKEN:
            raise RefusedCredentialError(Result.MALFORMED, "the client's certificate can't be read") from None
        matches = [match for part in parts if (match := self._pattern.fullmatch(part))]
        if len(matches) != 1:
            how_many = "no" if not matches else "more than one"
            msg = f"the client's certificate has {how_many} {self._settings.certificate_user} that names a user here"
            raise RefusedCredentialError(Result.CLAIMS, msg)
        groups = matches[0].groupdict()
        user, tenant = groups["user"], groups.get("tenant") or ""
        if not is_name(user) or not (tenant == "" or is_name(tenant)):
            raise RefusedCredentialError(
                Result.CLAIMS, "the client's certificate names a user or tenant of no valid name"
            )
        scopes = set(self._settings.default_scopes)
        if (f"{tenant}/{user}" if tenant else user) in self._settings.certificate_admins:
            scopes.add(Scope.ADMIN)
        expires_at = certificate.not_valid_after_utc.timestamp()
        serial = f"{certificate.serial_number:x}"
        credential = Credential(KIND, serial, frozenset(scopes), expires_at, fingerprint)
        return Caller(user, tenant=tenant, is_verified=True, credential=credential), credential


def _parts(certificate: x509.Certificate, kind: str) -> list[str]:
    """Return the parts of a certificate that may name the user."""
    if kind == "cn":
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return [str(attribute.value) for attribute in common]
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    if kind == "san_uri":
        return names.get_values_for_type(x509.UniformResourceIdentifier)
    return names.get_values_for_type(x509.RFC822Name if kind == "san_email" else x509.DNSName)


def parse_revocations(data: bytes, authorities: Iterable[x509.Certificate]) -> Revocations:
    """Return what the lists in a PEM file revoke.

    Raises:
        ValueError: it has no list, or one that is broken or that none of the authorities signed.

    """
    revoked: set[tuple[str, str]] = set()
    expires_at = math.inf
    texts = _CRL.findall(data)
    if not texts:
        raise ValueError("it holds no list of revoked certificates in PEM")
    for text in texts:
        try:
            crl = x509.load_pem_x509_crl(text)
            issuer = _fingerprint(crl.issuer)
            revoked.update((issuer, f"{entry.serial_number:x}") for entry in crl)
        except _BROKEN as error:
            raise ValueError("it holds a broken list") from error
        if not any(each.subject == crl.issuer and _has_signed(each, crl) for each in authorities):
            msg = f"no authority of server.tls.client_ca signed its list of {crl.issuer.rfc4514_string()}"
            raise ValueError(msg)
        if crl.next_update_utc is not None:
            expires_at = min(expires_at, crl.next_update_utc.timestamp())
    return Revocations(frozenset(revoked), expires_at)


def _has_signed(authority: x509.Certificate, crl: x509.CertificateRevocationList) -> bool:
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # others raise TypeError
    except (TypeError, UnsupportedAlgorithm):
        return False


def _fingerprint(name: x509.Name) -> str:
    """Return a hash of a name's text: a list may have its issuer in another type of string than the certificates."""
    return hashlib.sha256(name.rfc4514_string().encode()).hexdigest()[:_FINGERPRINT_DIGITS]
