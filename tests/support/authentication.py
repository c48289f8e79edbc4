"""Callers for tests: an authenticator that knows a few credentials, and open doors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from completion_server.admission.callers import Callers
from completion_server.admission.entrance import Entrance
from completion_server.admission.quotas import RefusalBudget
from completion_server.admission.refusals import Refusals
from completion_server.admission.settings import AdmissionSettings, LimitSettings
from completion_server.auth.principal import Authenticator, Credentials, Principal, Scope
from completion_server.core.errors import UnauthenticatedError

NO_LIMIT = RefusalBudget(0, 1)
LONG_PAST_S = 1000.0
"""A token with this end has expired once `KnownCallers.now` says so."""


def principal(user: str, *scopes: Scope, **fields: Any) -> Principal:
    """Return a caller of the tenant acme with an API key; without `scopes` it may complete and report feedback."""
    fields = {"tenant": "acme", "kind": "key", "credential": f"id-of-{user}"} | fields
    return Principal(user, scopes=frozenset(scopes or (Scope.COMPLETE, Scope.FEEDBACK)), **fields)


@dataclass
class KnownCallers:
    """Verifies by tables of tokens and of the common names of certificates."""

    tokens: dict[str, Principal] = field(default_factory=dict)
    names: dict[str, Principal] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    now: float = 0.0
    """Unix seconds, which only a test moves on."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        found = self.tokens.get(credentials.token)
        if not credentials.token and credentials.certificate:
            subject = x509.load_pem_x509_certificate(credentials.certificate).subject
            (name,) = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
            found = self.names.get(str(name.value))
        if found is None or not self.is_current(found):
            raise UnauthenticatedError("the token is unknown or has expired")
        return found

    def is_current(self, principal: Principal) -> bool:
        return principal.credential not in self.revoked and principal.expires_at > self.now

    def revoke(self, credential: str) -> None:
        self.revoked.add(credential)


def callers(
    now: Callable[[], float], budget: RefusalBudget = NO_LIMIT, authenticator: Authenticator | None = None
) -> Callers:
    """Return the callers of a listener, whose connections have a budget of refused bytes."""
    entrance = Entrance(AdmissionSettings(), LimitSettings(), authenticator)
    return Callers(entrance, Refusals(budget, NO_LIMIT, now))
