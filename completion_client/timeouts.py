"""The deadline that a request carries in its message."""

import math

from completion.v1 import completion_pb2 as pb

_MAX_TIMEOUT_MS = 86_400_000
"""The longest timeout that the contract allows."""


def give_timeout(request: pb.CompleteRequest, timeout_s: float) -> None:
    """Set the timeout of a request, unless it has a shorter one."""
    timeout_ms = min(max(1, math.ceil(timeout_s * 1000)), _MAX_TIMEOUT_MS)
    if not request.HasField("timeout_ms") or timeout_ms < request.timeout_ms:
        request.timeout_ms = timeout_ms
