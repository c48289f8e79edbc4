"""Failed calls and requests as exceptions, one class for each gRPC status that callers handle differently.

A request that ends as superseded, shed or cancelled has not failed: its `Completion` names the reason.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from completion.v1 import completion_pb2 as pb

_Detail = TypeVar("_Detail", error_details_pb2.RetryInfo, error_details_pb2.BadRequest, error_details_pb2.ErrorInfo)

_DETAILS_KEY = "grpc-status-details-bin"
_STATUS_BY_NUMBER = {status.value[0]: status for status in grpc.StatusCode}

SESSION_ENDED = "SESSION_ENDED"
"""The reason with which a server ends an idle or old Session stream in good order."""


class FieldViolation(NamedTuple):
    """A field of a request that the server refuses."""

    field: str
    """The field's path, such as "snippets[2].text"."""
    description: str
    """The limit and the value given."""


class Limit(NamedTuple):
    """A limit of the server that a request exceeded."""

    name: str
    """The server's setting, such as "admission.user_requests_per_s"."""
    allowed: float
    """Its active value."""

    @classmethod
    def of_end(cls, end: pb.End) -> "Limit | None":
        """Return the limit that an End names, if it names one."""
        return cls(end.limit.name, end.limit.allowed) if end.HasField("limit") else None


class ServiceError(Exception):
    """A call or a request failed. Base of all errors that the server or the connection causes."""

    default_status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        status: grpc.StatusCode | None = None,
        reason: str = "",
        violations: tuple[FieldViolation, ...] = (),
        retry_after_ms: int | None = None,
        limit: Limit | None = None,
    ) -> None:
        """Hold the failure's status and its details."""
        super().__init__(message)
        self.message = message
        """A sentence for a person, from the server or from gRPC."""
        self.status = status or self.default_status
        """The gRPC status code."""
        self.reason = reason
        """The contract's `ErrorReason` without its prefix, such as "OVERLOAD"; "" if the server gives none."""
        self.violations = violations
        """The fields that the server refuses."""
        self.retry_after_ms = retry_after_ms
        """When to try again, in milliseconds; None if the server does not say."""
        self.limit = limit
        """The server's limit that was exceeded, if it names one."""


class InvalidArgumentError(ServiceError):
    """A field is invalid or too large; `violations` names it. Repeating the request does not help."""

    default_status = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceededError(ServiceError):
    """The deadline passed before the request ended."""

    default_status = grpc.StatusCode.DEADLINE_EXCEEDED


class UnauthenticatedError(ServiceError):
    """The server wants to know the caller: by a token, or by the name of a user."""

    default_status = grpc.StatusCode.UNAUTHENTICATED


class TokenError(UnauthenticatedError):
    """There is no token to send: its source has none. Raised by the client, not by the server."""


class TokenRefusedError(TokenError):
    """The server refused the caller's token, also after it was fetched again. The message names its source.

    The token is sent again after `retry_after_ms`, or once the source has another.
    """


class PermissionDeniedError(ServiceError):
    """The caller's token or certificate does not allow the call."""

    default_status = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhaustedError(ServiceError):
    """The server is overloaded, or the caller is over its limits. Try again after `retry_after_ms`."""

    default_status = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPreconditionError(ServiceError):
    """The server can't do this as it is configured, or it refuses a prompt that its engine failed on."""

    default_status = grpc.StatusCode.FAILED_PRECONDITION


class UnimplementedError(ServiceError):
    """The address belongs to a server without this method."""

    default_status = grpc.StatusCode.UNIMPLEMENTED


class UnavailableError(ServiceError):
    """The server is not reachable, is starting, or is shutting down. Try again after `retry_after_ms`."""

    default_status = grpc.StatusCode.UNAVAILABLE


class ConnectionLostError(UnavailableError):
    """There is no connection, or it was lost. Raised by the client, not by the server."""


class FailedWriteError(ConnectionLostError):
    """A write failed because the stream or its connection has ended. The server's own status is not known."""


_CLASSES = {kind.default_status: kind for kind in ServiceError.__subclasses__()}

_FAILED_WRITE = "Internal error from Core"
"""Message of grpc.aio for a call whose connection broke during a write. The status of the server is lost then."""


def error_of_call(error: grpc.RpcError) -> ServiceError:
    """Return the exception for a failed call, with the details of its status (google.rpc.Status)."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return ServiceError(str(error))
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == _FAILED_WRITE:
        return FailedWriteError("the connection was lost during a write")
    if error.code() is grpc.StatusCode.CANCELLED:  # by gRPC, of a server that closes or has too many calls waiting
        return UnavailableError("the server ended the call without an answer")
    trailers = {str(key): value for key, value in error.trailing_metadata() or ()}
    details = _details(trailers.get(_DETAILS_KEY))
    retry = _detail(details, error_details_pb2.RetryInfo)
    bad_request = _detail(details, error_details_pb2.BadRequest)
    info = _detail(details, error_details_pb2.ErrorInfo)
    return _make(
        error.code(),
        details.message or error.details() or "no reason given",
        reason=info.reason if info else "",
        violations=_violations(bad_request.field_violations) if bad_request else (),
        retry_after_ms=round(retry.retry_delay.ToTimedelta().total_seconds() * 1000) if retry else None,
        limit=_limit_of(info) if info else None,
    )


def error_of_end(end: pb.End | None) -> ServiceError | None:
    """Return the exception for a request's end, None if it did not fail. No end at all is a failure, too."""
    if end is None:
        return _make(grpc.StatusCode.INTERNAL, "the stream ended without saying how the request ended")
    if end.finish_reason == pb.FINISH_REASON_DEADLINE:
        return DeadlineExceededError("the deadline passed first")
    if end.finish_reason != pb.FINISH_REASON_ERROR:
        return None
    retry_after_ms = end.retry_after_ms if end.HasField("retry_after_ms") else None
    return error_of_message(end.error, retry_after_ms=retry_after_ms, limit=Limit.of_end(end))


def error_of_message(
    error: pb.RequestError, *, retry_after_ms: int | None = None, limit: Limit | None = None
) -> ServiceError:
    """Return the exception for an error inside an answer."""
    is_known = error.reason != pb.ERROR_REASON_UNSPECIFIED and error.reason in pb.ErrorReason.values()
    return _make(
        _STATUS_BY_NUMBER.get(error.code, grpc.StatusCode.UNKNOWN),
        error.message or "no reason given",
        reason=pb.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_") if is_known else "",
        violations=_violations(error.field_violations),
        retry_after_ms=retry_after_ms,
        limit=limit,
    )


def _make(status: grpc.StatusCode, message: str, **details: Any) -> ServiceError:  # noqa: ANN401 - as ServiceError's
    return _CLASSES.get(status, ServiceError)(message, status=status, **details)


def _limit_of(info: error_details_pb2.ErrorInfo) -> Limit | None:
    name, allowed = info.metadata.get("limit"), info.metadata.get("allowed")
    return Limit(name, float(allowed)) if name and allowed else None


def _details(raw: str | bytes | None) -> status_pb2.Status:
    return status_pb2.Status.FromString(raw) if isinstance(raw, bytes) else status_pb2.Status()


def _detail(details: status_pb2.Status, kind: type[_Detail]) -> _Detail | None:
    for packed in details.details:
        detail = kind()
        if packed.Unpack(detail):
            return detail
    return None


def _violations(
    messages: Iterable[error_details_pb2.BadRequest.FieldViolation | pb.FieldViolation],
) -> tuple[FieldViolation, ...]:
    return tuple(FieldViolation(each.field, each.description) for each in messages)
