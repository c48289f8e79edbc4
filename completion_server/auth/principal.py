"""What a caller presents, and who it is found to be. Pure."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Scope(StrEnum):
    """What a caller may do."""

    COMPLETE = "complete"
    FEEDBACK = "feedback"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a call presents, whatever its transport. Never logged: the token is a secret."""

    token: str = ""
    """The bearer token or API key, without its scheme; "" for none."""
    certificate: bytes = b""
    """The client's certificate in PEM, which the TLS library has verified; b"" for none."""

    def __repr__(self) -> str:
        """Return what may be logged."""
        return f"Credentials(token={bool(self.token)}, certificate={bool(self.certificate)})"


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller. Its user and tenant come from verified claims, never from metadata."""

    user: str
    tenant: str
    scopes: frozenset[Scope]
    kind: str
    """How it was verified: "key", "token" or "certificate"."""
    credential: str
    """Names the credential in logs and the audit log: the id of a key or of a token, or a certificate's serial
    number in hexadecimal digits. No secret."""
    expires_at: float = math.inf
    """Unix time in seconds at which it ends; infinite for none."""
    fingerprint: str = ""
    """Hash of what `credential` leaves open: of a key's secret, of the issuer's key that signed a token, or of the name
    of a certificate's authority. No secret."""


class Authenticator(Protocol):
    """Verifies callers. Verified once for a token; asking again for the same one is a lookup."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Return the verified caller.

        Raises:
            UnauthenticatedError: nothing was presented, or it is unknown, forged, expired or revoked.
            UnavailableError: the issuer's keys were never fetched; retry later.

        """

    def is_current(self, principal: Principal) -> bool:
        """Return whether a caller verified earlier still would be: its key, token or certificate is not revoked or
        expired. Cheap enough for each request.
        """
