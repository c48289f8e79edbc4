"""One completion as a client lives it: what came, when, and how it ended."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.client.connection import Metadata
from completion_server.client.failure import Failure, failure_in, failure_of

_INCOMPLETE = Failure("INTERNAL", "the stream ended without saying how the request ended")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request came to. Times are milliseconds since the call was made."""

    text: str
    end: pb.End | None
    """None where the call failed before the server ended the request."""
    failure: Failure | None
    delta_ms: tuple[float, ...]
    """When each piece of text arrived."""
    total_ms: float

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first piece of text; None without text."""
        return self.delta_ms[0] if self.delta_ms else None

    @property
    def first_step_ms(self) -> float:
        """From the first piece of text to what came after it; 0 without text."""
        if not self.delta_ms:
            return 0.0
        return (self.delta_ms[1] if len(self.delta_ms) > 1 else self.total_ms) - self.delta_ms[0]

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first, over the time that the server took for them; None with fewer than two.

        By the server's clock: text may be held back and then come all at once.
        """
        if self.end is None or self.end.usage.completion_tokens <= 1 or self.end.timings.decode_ms <= 0:
            return None
        return (self.end.usage.completion_tokens - 1) * 1000 / self.end.timings.decode_ms

    def as_dict(self) -> dict[str, Any]:
        """Return everything a machine wants to know, under the contract's own names."""
        end = self.end or pb.End()
        return {
            "text": self.text,
            "finish_reason": finish_reason_of(end) if self.end else None,
            "shed_reason": shed_reason_of(end),
            "retry_after_ms": end.retry_after_ms if end.HasField("retry_after_ms") else None,
            "usage": _fields(end.usage),
            "timings": _fields(end.timings),
            "ttft_ms": _rounded(self.ttft_ms),
            "tokens_per_s": _rounded(self.tokens_per_s),
            "total_ms": _rounded(self.total_ms),
            "error": self.failure.as_dict() if self.failure else None,
        }


def ask(
    stub: CompletionServiceStub,
    request: pb.CompleteRequest,
    *,
    timeout_s: float,
    metadata: Metadata = (),
    on_text: Callable[[str], None] = lambda text: None,
) -> Answer:
    """Ask for a completion and follow it to its end, whatever that is; `on_text` sees each piece as it arrives."""
    pieces: list[str] = []
    delta_ms: list[float] = []
    end: pb.End | None = None
    failure: Failure | None = None
    start = time.perf_counter()
    call = stub.Complete(request, timeout=timeout_s, metadata=metadata)
    try:
        for response in call:
            if response.HasField("end"):
                end = response.end
            if text := response.delta.text or response.end.text:
                delta_ms.append((time.perf_counter() - start) * 1000)
                pieces.append(text)
                on_text(text)
    except grpc.RpcError as error:
        failure = failure_of(error)
    finally:
        total_ms = (time.perf_counter() - start) * 1000
        call.cancel()
    return Answer("".join(pieces), end, failure or _failure_at(end), tuple(delta_ms), total_ms)


def finish_reason_of(end: pb.End) -> str:
    """Return the finish reason's short name, such as "stop"."""
    return pb.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower()


def shed_reason_of(end: pb.End) -> str | None:
    """Return the shed reason's short name, such as "overload"; None where nothing was shed."""
    if end.shed_reason == pb.SHED_REASON_UNSPECIFIED:
        return None
    return pb.ShedReason.Name(end.shed_reason).removeprefix("SHED_REASON_").lower()


def _failure_at(end: pb.End | None) -> Failure | None:
    if end is None:
        return _INCOMPLETE
    if end.finish_reason == pb.FINISH_REASON_ERROR:
        return failure_in(end)
    if end.finish_reason == pb.FINISH_REASON_DEADLINE:
        return Failure("DEADLINE_EXCEEDED", "the deadline passed first")
    return None


def _fields(message: pb.Usage | pb.Timings) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
