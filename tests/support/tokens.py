"""Authentication by a table of tokens, which a test changes."""

import math

from completion_server.auth.principal import Credentials, Principal, Scope
from completion_server.core.errors import UnauthenticatedError


def principal(user: str, *scopes: Scope, tenant: str = "", expires_at: float = math.inf) -> Principal:
    """Return a caller with these scopes; without any it may complete and give feedback."""
    granted = frozenset(scopes or (Scope.COMPLETE, Scope.FEEDBACK))
    return Principal(user, tenant, granted, "key", f"id-of-{user}", expires_at)


class Tokens:
    """Verifies callers by the tokens that they present."""

    def __init__(self, principals: dict[str, Principal]) -> None:
        self._principals = dict(principals)
        self.now = 0.0
        """Unix seconds, which only a test moves on."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        found = self._principals.get(credentials.token)
        if found is None or found.expires_at <= self.now:
            raise UnauthenticatedError("the token is unknown or has expired" if credentials.token else "no token came")
        return found

    def is_current(self, principal: Principal) -> bool:
        return principal in self._principals.values() and principal.expires_at > self.now

    def revoke(self, token: str) -> None:
        del self._principals[token]
