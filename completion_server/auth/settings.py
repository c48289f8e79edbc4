"""The `[auth]` section: who may ask."""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from completion_server.core.addresses import is_loopback
from completion_server.core.credential import Scope

CertificateUser = Literal["off", "san_uri", "san_email", "san_dns", "cn"]


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """The `[auth]` section. Authentication is on if `keys_file`, `issuer` or `certificate_user` is set."""

    keys_file: str = ""
    """A file of API keys, which `completion-server keys` writes. It may not exist yet. It is read again when it
    changes."""
    issuer: str = ""
    """Accept JSON Web Tokens of this issuer: their claim `iss`. The issuer's keys come from `jwks_url` or `jwks_file`,
    else from the place that the issuer's discovery document (OpenID Connect) names."""
    audience: str = ""
    """This server's name at the issuer: tokens must name it in their claim `aud`. Needed beside `issuer`."""
    jwks_url: str = ""
    """Where the issuer's key set (JWKS) is: an https URL, or an http URL on loopback. Authorities are those of the
    system; the environment variable SSL_CERT_FILE names others."""
    jwks_file: str = ""
    """A file with the issuer's key set, instead of a URL. It is read again when it changes."""
    user_claim: str = "sub"
    """The claim that names the user."""
    tenant_claim: str = "tenant"
    """The claim that names the tenant; a token without it belongs to the tenant "". Unset: all tokens do."""
    scopes_claim: str = "scope"
    """The claim that lists scopes, as a list or with spaces between them; names other than complete, feedback and admin
    are ignored. A token without the claim has `default_scopes`. Unset: all tokens have them."""
    default_scopes: tuple[Scope, ...] = (Scope.COMPLETE, Scope.FEEDBACK)
    """What callers may do whose credential lists no scopes: complete, feedback, admin."""
    certificate_user: CertificateUser = "off"
    """The part of a client's certificate that names the user: an alternative name that is a URI (a SPIFFE ID), an email
    address or a DNS name, or the subject's common name. Needs `server.tls.client_ca`."""
    certificate_pattern: str = ""
    """A regular expression that the whole of that part must match. Its named group `user` is the user's name, and its
    group `tenant`, if there is one, the tenant's. Unset: the whole part is the user's name."""
    certificate_admins: tuple[str, ...] = ()
    """Users who also have the scope admin if a certificate names them: TENANT/USER if it names a tenant, else USER."""
    crl_file: str = ""
    """A PEM file with lists of revoked certificates (CRL), one for each authority of `client_ca`, signed by it. It is
    read again when it or `client_ca` changes."""

    def __post_init__(self) -> None:
        """Check that the keys fit together."""
        self._check_issuer()
        self._check_certificates()
        if not self.user_claim:
            raise ValueError('user_claim: must name a claim, got ""')
        if not self.default_scopes:
            raise ValueError("default_scopes: must name at least one scope, got []")

    @property
    def is_on(self) -> bool:
        """Whether callers must present a credential."""
        return bool(self.keys_file or self.issuer) or self.takes_certificates

    @property
    def takes_certificates(self) -> bool:
        """Whether a certificate is a credential."""
        return self.certificate_user != "off"

    def _check_issuer(self) -> None:
        for key in ("audience", "jwks_url", "jwks_file"):
            if getattr(self, key) and not self.issuer:
                msg = f"{key}: needs issuer beside it, got {getattr(self, key)!r}"
                raise ValueError(msg)
        if self.issuer and not self.audience:
            msg = "audience: must be set if issuer is: else this server accepts tokens that were meant for others"
            raise ValueError(msg)
        if self.jwks_url and self.jwks_file:
            raise ValueError("jwks_file: must not be set beside jwks_url")
        if self.jwks_url:
            require_safe("jwks_url", self.jwks_url)
        elif self.issuer and not self.jwks_file:
            require_safe("issuer", self.issuer)

    def _check_certificates(self) -> None:
        for key in ("certificate_pattern", "certificate_admins", "crl_file"):
            if getattr(self, key) and not self.takes_certificates:
                msg = f'{key}: needs certificate_user beside it, which is "off"'
                raise ValueError(msg)
        if not self.certificate_pattern:
            return
        try:
            groups = re.compile(self.certificate_pattern).groupindex
        except re.error as error:
            msg = f"certificate_pattern: not a regular expression: {error}"
            raise ValueError(msg) from error
        if "user" not in groups or set(groups) - {"user", "tenant"}:
            known = "(?P<user>...), and may have (?P<tenant>...)"
            msg = f"certificate_pattern: must have a group {known}, got {self.certificate_pattern!r}"
            raise ValueError(msg)


def require_safe(key: str, url: str) -> None:
    """Check that nobody on the way can replace what a URL answers.

    Raises:
        ValueError: it is neither an https URL nor an http URL on loopback; the message begins with `key`.

    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(f"{host}:0"))):
        msg = f"{key}: must be an https URL, or an http URL on loopback, got {url!r}"
        raise ValueError(msg)
