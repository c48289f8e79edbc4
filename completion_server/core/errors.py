"""Expected failures. Each carries its gRPC status; any other exception is a bug."""

from dataclasses import dataclass
from enum import Enum, IntEnum


class Code(IntEnum):
    """The google.rpc.Code numbers in use."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Fault(Enum):
    """The party whose fault it is that a request was refused or failed."""

    SERVER = "server"
    """It counts against the objective and is worth a trace."""
    CALLER = "caller"
    """Any server would have refused the request, or its caller exceeds a limit."""
    NEITHER = "neither"
    """The caller is passed on to another server, or opens another stream."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A field with an invalid value."""

    field: str
    """Its path, such as "snippets[2].text"."""
    description: str
    """The limit and the value that was given."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A configured limit that a caller or the load exceeds."""

    name: str
    """Its configuration key."""
    allowed: float
    """Its active value, in the unit of the key."""

    def __str__(self) -> str:
        """Return its name and what it allows."""
        return f"{self.name} = {self.allowed:.15g}"


class CompletionError(Exception):
    """A request failed for a reason that is reported to its caller."""

    code = Code.INTERNAL
    reason = ""
    """A machine-readable reason if the code alone is not precise enough, else "": an `ErrorReason` of the contract."""
    fault = Fault.SERVER

    def __init__(
        self,
        message: str,
        *,
        violations: tuple[Violation, ...] = (),
        retry_after_ms: int | None = None,
        limit: Limit | None = None,
    ) -> None:
        """Hold a message for a person, the invalid fields, the time after which to retry and an exceeded limit."""
        super().__init__(message)
        self.message = message
        self.violations = violations
        self.retry_after_ms = retry_after_ms
        self.limit = limit


class InvalidRequestError(CompletionError):
    """A field is invalid or too large."""

    code = Code.INVALID_ARGUMENT
    fault = Fault.CALLER

    def __init__(self, field: str, description: str) -> None:
        """Name the field, the limit and the value that was given."""
        super().__init__(f"{field}: {description}", violations=(Violation(field, description),))


class UnauthenticatedError(CompletionError):
    """The caller names no user, but this server requires a name; or presents no valid credential."""

    code = Code.UNAUTHENTICATED
    fault = Fault.CALLER


class PermissionDeniedError(CompletionError):
    """The caller is known but lacks the permission."""

    code = Code.PERMISSION_DENIED
    fault = Fault.CALLER


class NotPossibleError(CompletionError):
    """The server was started without a feature that the request needs; a retry won't help."""

    code = Code.FAILED_PRECONDITION
    fault = Fault.CALLER


class NoNextEditsError(NotPossibleError):
    """The served model does not write next edits."""

    reason = "NO_NEXT_EDITS"


class SuspectedPromptError(CompletionError):
    """The engine failed repeatedly while it computed this prompt; the prompt is refused for some minutes."""

    code = Code.FAILED_PRECONDITION
    reason = "PROMPT_SUSPECTED"
    fault = Fault.CALLER


class UnavailableError(CompletionError):
    """The engine can't serve now; retry later or on another server."""

    code = Code.UNAVAILABLE
    reason = "ENGINE_NOT_READY"


class IssuerUnavailableError(UnavailableError):
    """The keys of the issuer of tokens were never fetched, so no token can be verified yet."""

    reason = ""


class DrainingError(UnavailableError):
    """The server is shutting down; another one serves."""

    reason = "DRAINING"
    fault = Fault.NEITHER


class CutShortError(UnavailableError):
    """The server stopped before the request was finished."""

    reason = "DRAINING"


class DeadlineError(CompletionError):
    """The deadline passed before the request was received or answered."""

    code = Code.DEADLINE_EXCEEDED
    fault = Fault.CALLER


class ShedError(CompletionError):
    """The request was shed, and the server is configured to report that as a failure (`shed.as_status`)."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, shed_reason: str, retry_after_ms: int | None, limit: Limit | None = None) -> None:
        """Hold the reason, the time after which to retry, and the limit that was exceeded."""
        cause = shed_reason.replace("_", " ") + (f" by {limit}" if limit else "")
        super().__init__(f"the request was shed: {cause}", retry_after_ms=retry_after_ms, limit=limit)
        self.reason = shed_reason.upper()


class OverloadedError(CompletionError):
    """A configured limit of open sessions or live requests is reached."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_OPEN"
    fault = Fault.CALLER


class ServerFullError(OverloadedError):
    """This server has as many sessions as it takes; another one may have room."""

    reason = "SERVER_FULL"
    fault = Fault.SERVER


class SessionEndedError(UnavailableError):
    """The server ends a session stream normally; the client opens another one with its next request."""

    reason = "SESSION_ENDED"
    fault = Fault.NEITHER


def is_servers_fault(error: CompletionError | None) -> bool:
    """Return whether a refusal or failure is the server's fault. None stands for an unexpected failure, which is."""
    return error is None or error.fault is Fault.SERVER


class ConfigError(Exception):
    """The configuration can't be used; the message names the key and the values that it takes."""
