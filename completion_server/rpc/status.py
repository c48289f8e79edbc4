"""Failures as gRPC statuses, with the standard details: BadRequest for fields, RetryInfo for when to ask again."""

from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from completion_server.core.errors import Code, CompletionError

DEADLINE_PASSED = CompletionError("the deadline passed first")
DEADLINE_PASSED.code = Code.DEADLINE_EXCEEDED


async def abort(context: "grpc.aio.ServicerContext[object, object]", error: CompletionError) -> NoReturn:
    """End a call with the status that an error means. Never returns."""
    status = Status(code=int(error.code), message=error.message)
    if error.violations:
        violations = [BadRequest.FieldViolation(field=v.field, description=v.description) for v in error.violations]
        status.details.append(_packed(BadRequest(field_violations=violations)))
    if error.retry_after_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        status.details.append(_packed(RetryInfo(retry_delay=delay)))
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError  # abort always raises


def _packed(message: BadRequest | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
