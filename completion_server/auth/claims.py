"""Names and scopes in verified claims, and why a credential is refused. Pure."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from completion_server.core.credential import Scope
from completion_server.core.errors import UnauthenticatedError

MAX_NAME_BYTES = 256
_SCOPES = {scope.value: scope for scope in Scope}


class Result(StrEnum):
    """How the check of a credential ended."""

    ACCEPTED = "accepted"
    MISSING = "missing"
    """Nothing was presented."""
    MALFORMED = "malformed"
    """It is too long, or has no form that is known."""
    UNKNOWN = "unknown"
    """No such API key, no key of the issuer with this id, or a kind that this server does not take."""
    FORGED = "forged"
    """Its signature is wrong."""
    ALGORITHM = "algorithm"
    """It is signed with an algorithm that is not allowed, or that its key is not for."""
    ISSUER = "issuer"
    AUDIENCE = "audience"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    CLAIMS = "claims"
    """It lacks a claim or a name, or one has an invalid value."""
    REVOKED = "revoked"
    UNAVAILABLE = "unavailable"
    """The issuer's keys were never fetched."""


class RefusedCredentialError(UnauthenticatedError):
    """A credential is refused. The message is for the caller and quotes nothing that was presented."""

    def __init__(self, result: Result, message: str) -> None:
        """Hold the result for the metrics, and a message for a person."""
        super().__init__(message)
        self.result = result


def is_name(value: object) -> bool:
    """Return whether a value can name a user or a tenant: at most 256 bytes of printable text, and not empty."""
    # Text with a lone surrogate, which has no bytes, is not printable.
    return isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= MAX_NAME_BYTES


def name_in(claims: Mapping[str, Any], claim: str, *, default: str | None = None) -> str:
    """Return the name that a claim gives; `default` if the claim is absent, None for a claim that is needed.

    Raises:
        RefusedCredentialError: the claim is absent and needed, or is no name.

    """
    value = claims.get(claim)
    if value is None and default is not None:
        return default
    if not is_name(value):
        raise RefusedCredentialError(Result.CLAIMS, f"the token's claim {claim} names nobody: log in again")
    return str(value)


def scopes_in(claims: Mapping[str, Any], claim: str, default: Iterable[Scope]) -> frozenset[Scope]:
    """Return the scopes that a claim lists. Other names in it are ignored.

    Raises:
        RefusedCredentialError: the claim is neither text nor a list of text.

    """
    value = claims.get(claim) if claim else None
    if value is None:
        return frozenset(default)
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RefusedCredentialError(Result.CLAIMS, f"the token's claim {claim} is no list of scopes")
    return frozenset(_SCOPES[name] for name in names if name in _SCOPES)
