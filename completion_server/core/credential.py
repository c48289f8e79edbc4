"""What a verified caller has shown, and what it may do. Pure."""

import math
from enum import StrEnum

from completion_server.core.errors import PermissionDeniedError
from completion_server.core.immutable import immutable


class Scope(StrEnum):
    """What a caller may do."""

    COMPLETE = "complete"
    FEEDBACK = "feedback"
    ADMIN = "admin"


@immutable
class Credential:
    """A verified API key, token or client certificate. Nothing in it is secret."""

    kind: str
    """"key", "token" or "certificate"."""
    name: str
    """Its name in logs: the id of a key or of a token, or a certificate's serial number in hexadecimal digits."""
    scopes: frozenset[Scope]
    expires_at: float = math.inf
    """Unix time in seconds at which it ends; infinite for none."""
    fingerprint: str = ""
    """Hash of what `name` leaves open: of a key's secret, of the issuer's key that signed a token, or of the name of a
    certificate's authority."""

    def require(self, scope: Scope) -> None:
        """Check that its holder may do what a scope names.

        Raises:
            PermissionDeniedError: it may not.

        """
        if scope not in self.scopes:
            msg = f"{self.kind} {self.name}: lacks the scope {scope.value}"
            raise PermissionDeniedError(msg)
