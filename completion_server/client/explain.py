"""Errors of a server as sentences with a remedy for the user."""

from collections.abc import Callable

import grpc

from completion_client import ServiceError

START_HINT = "Start one with: completion-server serve --config FILE"

_MAX_CAUSE_CHARS = 120
_MS_PER_S = 1000


def explain(error: ServiceError, address: str, *, reached: bool = True) -> str:
    """Return a sentence with the error and its remedy; `reached` says whether there was a connection at all."""
    if not reached:
        return f"No server answers at {address} ({_last_cause(error.message)}). {START_HINT}; or name another address."
    template = _TEMPLATES.get(error.status)
    text = template(error, address) if template else _failed(error, address)
    return text + (f" Ask again in {_duration(error.retry_after_ms)}." if error.retry_after_ms is not None else "")


def _duration(milliseconds: int) -> str:
    seconds = milliseconds / _MS_PER_S
    return f"{seconds:.0f} s" if seconds >= 1 else f"{milliseconds} ms"


def _failed(error: ServiceError, address: str) -> str:
    return f"The server at {address} failed: {error.message} ({error.status.name})."


def _invalid(error: ServiceError, address: str) -> str:
    faults = "; ".join(f"{each.field}: {each.description}" for each in error.violations) or error.message
    return f"The server at {address} refused the request: {faults}."


def _last_cause(details: str) -> str:
    """Return the last cause in gRPC's long message about a failed connection."""
    return details.rstrip(".; )").rsplit(": ", 1)[-1][:_MAX_CAUSE_CHARS]


_TEMPLATES: dict[grpc.StatusCode, Callable[[ServiceError, str], str]] = {
    grpc.StatusCode.UNAVAILABLE: lambda error, address: f"The server at {address} can't answer now: {error.message}.",
    grpc.StatusCode.INVALID_ARGUMENT: _invalid,
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda error, address: (
        f"The server at {address} did not finish in time; allow it more with --timeout-ms."
    ),
    grpc.StatusCode.UNAUTHENTICATED: lambda error, address: (
        f"The server at {address} wants to know its user: {error.message}. Name one with --user."
    ),
    grpc.StatusCode.PERMISSION_DENIED: lambda error, address: (
        f"The server at {address} does not allow this with your certificate: {error.message}."
    ),
    grpc.StatusCode.RESOURCE_EXHAUSTED: lambda error, address: (
        f"The server at {address} is overloaded: {error.message}."
    ),
    grpc.StatusCode.UNIMPLEMENTED: lambda error, address: (
        f"The listener at {address} does not serve this: {error.message}. Is it the right port?"
    ),
    grpc.StatusCode.CANCELLED: lambda error, address: f"The call to {address} was cancelled: {error.message}.",
}
