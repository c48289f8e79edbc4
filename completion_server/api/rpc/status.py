"""Ends calls with gRPC statuses and the standard details: BadRequest, ErrorInfo and RetryInfo (see the contract)."""

import asyncio
from typing import NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from completion_server.core.errors import CompletionError

_DOMAIN = "completion.v1"


async def abort(context: "grpc.aio.ServicerContext[object, object]", error: CompletionError) -> NoReturn:
    """End a call with the status of an error. Never returns."""
    # gRPC keeps what `context.abort` raises, in a reference cycle, and this error with it. The frames of its traceback
    # hold the message, so a flood of refused messages would fill the memory until the garbage collector runs.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    status = Status(code=int(error.code), message=error.message)
    if error.violations:
        violations = [BadRequest.FieldViolation(field=v.field, description=v.description) for v in error.violations]
        status.details.add().Pack(BadRequest(field_violations=violations))
    if error.reason:
        info = ErrorInfo(reason=error.reason, domain=_DOMAIN)
        if error.limit is not None:
            info.metadata.update(limit=error.limit.name, allowed=f"{error.limit.allowed:.15g}")
        status.details.add().Pack(info)
    if error.retry_after_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError  # abort always raises


async def abort_within(
    context: "grpc.aio.ServicerContext[object, object]", error: CompletionError, timeout_s: float
) -> NoReturn:
    """End a call with a status, or reset it if the reader does not take the status in time. Never returns.

    A status waits behind unread messages, perhaps for ever, and keeps everything that the call holds in memory.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await abort(context, error)
    except TimeoutError:
        raise asyncio.CancelledError from None  # a call whose handler is cancelled is reset
