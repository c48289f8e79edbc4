"""Why a credential is refused."""

from enum import StrEnum

from completion_server.core.errors import UnauthenticatedError


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
