"""Callers for tests: an authenticator that knows a few credentials, and open doors."""

from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from completion_server.api.callers import Callers
from completion_server.auth.authenticator import Authenticator
from completion_server.core.credential import Credential, Scope
from completion_server.core.errors import UnauthenticatedError
from completion_server.core.request import Caller
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings

LONG_PAST_S = 1000.0
"""A token with this end has expired once `KnownCallers.now` says so."""


def verified(user: str, *scopes: Scope, tenant: str = "acme", credential: str = "", **fields: Any) -> Caller:
    """Return a caller of the tenant acme with an API key; without `scopes` it may complete and report feedback.

    `credential` is the name of its credential; `fields` are others of that.
    """
    allowed = frozenset(scopes or (Scope.COMPLETE, Scope.FEEDBACK))
    shown = Credential(**{"kind": "key", "name": credential or f"id-of-{user}", "scopes": allowed} | fields)
    return Caller(user, tenant=tenant, is_verified=True, credential=shown)


@dataclass
class KnownCallers:
    """Verifies by tables of tokens and of the common names of certificates."""

    tokens: dict[str, Caller] = field(default_factory=dict)
    names: dict[str, Caller] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    now: float = 0.0
    """Unix seconds, which only a test moves on."""

    async def authenticate(self, token: str, certificate: bytes) -> Caller:
        found = self.tokens.get(token)
        if not token and certificate:
            subject = x509.load_pem_x509_certificate(certificate).subject
            (name,) = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
            found = self.names.get(str(name.value))
        if found is None or not self.is_current(found):
            raise UnauthenticatedError("the token is unknown or has expired")
        return found

    def is_current(self, caller: Caller) -> bool:
        shown = caller.credential
        return shown is not None and shown.name not in self.revoked and shown.expires_at > self.now

    def revoke(self, credential: str) -> None:
        self.revoked.add(credential)


def callers(authenticator: Authenticator | None = None) -> Callers:
    """Return callers with the default limits."""
    return Callers(AdmissionSettings(), LimitSettings(), authenticator)
