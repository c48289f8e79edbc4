"""Expected failures. Each carries the status that the wire shows; anything else that is raised is a bug."""

from dataclasses import dataclass
from enum import IntEnum


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


@dataclass(frozen=True, slots=True)
class Violation:
    """A field at fault."""

    field: str
    """Its path, such as "snippets[2].text"."""
    description: str
    """The limit and what was given."""


class CompletionError(Exception):
    """A request failed for a reason that its caller can be told."""

    code = Code.INTERNAL
    reason = ""
    """A word for machines, where the code does not say it all."""

    def __init__(
        self, message: str, *, violations: tuple[Violation, ...] = (), retry_after_ms: int | None = None
    ) -> None:
        """Hold a sentence for a person, the fields at fault and when to ask again."""
        super().__init__(message)
        self.message = message
        self.violations = violations
        self.retry_after_ms = retry_after_ms


class InvalidRequestError(CompletionError):
    """A field is bad or too large."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, field: str, description: str) -> None:
        """Name the field, the limit and what was given."""
        super().__init__(f"{field}: {description}", violations=(Violation(field, description),))


class UnauthenticatedError(CompletionError):
    """The caller does not say which user it is, and must."""

    code = Code.UNAUTHENTICATED


class PermissionDeniedError(CompletionError):
    """The caller is known, and may not do this."""

    code = Code.PERMISSION_DENIED


class NotPossibleError(CompletionError):
    """This server can't do it as it was started: asking again won't help."""

    code = Code.FAILED_PRECONDITION


class SuspectedPromptError(CompletionError):
    """The engine failed repeatedly while it computed this prompt: the prompt is refused for some minutes."""

    code = Code.FAILED_PRECONDITION
    reason = "PROMPT_SUSPECTED"


class UnavailableError(CompletionError):
    """The engine is away or the server is going: ask again, or ask another."""

    code = Code.UNAVAILABLE


class ShedError(CompletionError):
    """The request was not attempted, where the caller wants to hear that as a failure."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, why: str, retry_after_ms: int | None) -> None:
        """Say why, and when to ask again."""
        super().__init__(f"the request was shed: {why.replace('_', ' ')}", retry_after_ms=retry_after_ms)
        self.reason = why.upper()


class OverloadedError(CompletionError):
    """The server holds as much as it is configured to hold."""

    code = Code.RESOURCE_EXHAUSTED


class TooManyRefusalsError(CompletionError):
    """A connection sent more bad requests than it may: none of its requests is received for a time."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_REFUSALS"


class SessionEndedError(UnavailableError):
    """The server ends a session stream in good order: open another when there is something to ask."""

    reason = "SESSION_ENDED"


class ConfigError(Exception):
    """The configuration can't be used; the message says which key, and what would do."""
