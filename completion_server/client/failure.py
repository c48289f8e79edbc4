"""What a failed call means, and what its user can do about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from completion.v1 import completion_pb2 as pb

_Detail = TypeVar("_Detail", error_details_pb2.RetryInfo, error_details_pb2.BadRequest, error_details_pb2.ErrorInfo)

_DETAILS_KEY = "grpc-status-details-bin"

START_HINT = "Start one with: completion-server serve --config FILE"


@dataclass(frozen=True, slots=True)
class Failure:
    """A call or a request that failed."""

    code: str
    """The gRPC status code's name."""
    message: str
    """What the server, or gRPC itself, says."""
    violations: tuple[tuple[str, str], ...] = ()
    """Fields at fault, and what is wrong with each."""
    retry_after_ms: int | None = None
    reason: str = ""
    """The machine-readable reason that the server gives."""

    def as_dict(self) -> dict[str, Any]:
        """Return what a machine wants to know."""
        return {
            "code": self.code,
            "message": self.message,
            "reason": self.reason or None,
            "retry_after_ms": self.retry_after_ms,
            "field_violations": [{"field": name, "description": text} for name, text in self.violations],
        }

    def sentence(self, address: str, *, reached: bool = True) -> str:
        """Return what happened and what to do about it; `reached` says whether there was a connection at all."""
        if not reached:
            return f"No server answers at {address} ({_short(self.message)}). {START_HINT}; or name another address."
        explain = _SENTENCES.get(self.code)
        text = explain(self, address) if explain else f"The server at {address} failed: {self.message} ({self.code})."
        return text + (f" Ask again in {self.retry_after_ms} ms." if self.retry_after_ms is not None else "")


def failure_of(error: grpc.RpcError) -> Failure:
    """Read a failed call's status, its details and its google.rpc messages."""
    if not isinstance(error, grpc.Call):
        return Failure("UNKNOWN", str(error))
    trailers = {str(key): value for key, value in error.trailing_metadata() or ()}
    status = _status(trailers.get(_DETAILS_KEY))
    retry = _detail(status, error_details_pb2.RetryInfo)
    bad = _detail(status, error_details_pb2.BadRequest)
    info = _detail(status, error_details_pb2.ErrorInfo)
    return Failure(
        code=error.code().name,
        message=status.message or error.details() or "no reason given",
        violations=tuple((each.field, each.description) for each in bad.field_violations) if bad else (),
        retry_after_ms=round(retry.retry_delay.ToTimedelta().total_seconds() * 1000) if retry else None,
        reason=info.reason if info else "",
    )


def failure_in(end: pb.End) -> Failure:
    """Read the error of a request that ended with FINISH_REASON_ERROR."""
    codes = {code.value[0]: code.name for code in grpc.StatusCode}
    return Failure(
        code=codes.get(end.error.code, "UNKNOWN"),
        message=end.error.message or "no reason given",
        violations=tuple((each.field, each.description) for each in end.error.field_violations),
        retry_after_ms=end.retry_after_ms if end.HasField("retry_after_ms") else None,
    )


def _status(raw: str | bytes | None) -> status_pb2.Status:
    return status_pb2.Status.FromString(raw) if isinstance(raw, bytes) else status_pb2.Status()


def _detail(status: status_pb2.Status, kind: type[_Detail]) -> _Detail | None:
    for packed in status.details:
        detail = kind()
        if packed.Unpack(detail):
            return detail
    return None


def _invalid(failure: Failure, address: str) -> str:
    faults = "; ".join(f"{name}: {text}" for name, text in failure.violations) or failure.message
    return f"The server at {address} refused the request: {faults}."


def _short(details: str) -> str:
    """Keep the last cause of gRPC's long account of a failed connection."""
    return details.rstrip(".; )").rsplit(": ", 1)[-1][:120]


_SENTENCES: dict[str, Callable[[Failure, str], str]] = {
    "UNAVAILABLE": lambda failure, address: f"The server at {address} can't answer now: {failure.message}.",
    "INVALID_ARGUMENT": _invalid,
    "DEADLINE_EXCEEDED": lambda failure, address: (
        f"The server at {address} did not finish in time; allow it more with --timeout-ms."
    ),
    "UNAUTHENTICATED": lambda failure, address: (
        f"The server at {address} wants a valid token ({failure.message}): set COMPLETION_SERVER_TOKEN, or use --token."
    ),
    "PERMISSION_DENIED": lambda failure, address: (
        f"The server at {address} does not allow this with your token or certificate: {failure.message}."
    ),
    "RESOURCE_EXHAUSTED": lambda failure, address: f"The server at {address} is overloaded: {failure.message}.",
    "UNIMPLEMENTED": lambda failure, address: (
        f"What listens at {address} does not serve this: {failure.message}. Is it the right port?"
    ),
    "CANCELLED": lambda failure, address: f"The call to {address} was cancelled: {failure.message}.",
}
