"""Completions and errors as objects for JSON output, under the contract's own names."""

from typing import Any

from google.protobuf.json_format import MessageToDict

from completion.v1 import completion_pb2 as pb
from completion_client import Completion, ServiceError


def completion_dict(completion: Completion) -> dict[str, Any]:
    """Return a completion with its usage, times and error."""
    end = completion.end or pb.End()
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "shed_reason": completion.shed_reason,
        "retry_after_ms": end.retry_after_ms if end.HasField("retry_after_ms") else None,
        "limit": completion.limit._asdict() if completion.limit else None,
        "cache_level": completion.cache_level,
        "usage": _fields(end.usage),
        "timings": _fields(end.timings),
        "ttft_ms": _rounded(completion.ttft_ms),
        "tokens_per_s": _rounded(completion.tokens_per_s),
        "total_ms": _rounded(completion.total_ms),
        "error": error_dict(completion.error) if completion.error else None,
    }


def error_dict(error: ServiceError) -> dict[str, Any]:
    """Return an error with its status, reason and fields."""
    return {
        "code": error.status.name,
        "message": error.message,
        "reason": error.reason or None,
        "retry_after_ms": error.retry_after_ms,
        "limit": error.limit._asdict() if error.limit else None,
        "field_violations": [each._asdict() for each in error.violations],
    }


def _fields(message: pb.Usage | pb.Timings) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
