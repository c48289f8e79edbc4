"""A server in this process with scripted answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
from click.testing import Result
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2

from completion.v1 import admin_pb2
from completion.v1 import completion_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceServicer
from completion.v1.completion_pb2_grpc import CompletionServiceServicer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def delta(text: str) -> pb.CompleteResponse:
    return pb.CompleteResponse(delta=pb.Delta(text=text))


def end(reason: pb.FinishReason, **fields: object) -> pb.CompleteResponse:
    return pb.CompleteResponse(end=pb.End(finish_reason=reason, **fields))


USAGE = pb.Usage(
    prompt_tokens=40, cached_prompt_tokens=32, completion_tokens=5, drafted_tokens=8, accepted_draft_tokens=3
)
TIMINGS = pb.Timings(queue_ms=0.1, tokenise_ms=0.2, prefill_ms=1.0, decode_ms=2.0, total_ms=3.5)
GOOD_ANSWER = (delta("a + "), delta("b"), end(pb.FINISH_REASON_STOP, usage=USAGE, timings=TIMINGS))


@dataclass
class Failure:
    """A status to fail a call with."""

    code: grpc.StatusCode
    message: str
    details: tuple[Message, ...] = ()

    async def abort(self, context: grpc.aio.ServicerContext) -> None:
        packed = [Any() for _ in self.details]
        for each, message in zip(packed, self.details, strict=True):
            each.Pack(message)
        rich = status_pb2.Status(code=self.code.value[0], message=self.message, details=packed)
        trailers = (("grpc-status-details-bin", rich.SerializeToString()),) if self.details else ()
        await context.abort(self.code, self.message, trailers)


@dataclass
class FakeServer(CompletionServiceServicer, AdminServiceServicer):
    """Plays back a script, and records the requests."""

    answer: tuple[pb.CompleteResponse, ...] = GOOD_ANSWER
    failure: Failure | None = None
    is_hanging: bool = False
    status: admin_pb2.GetStatusResponse = field(default_factory=admin_pb2.GetStatusResponse)
    metrics: str | None = None
    speculation: admin_pb2.GetSpeculationResponse = field(default_factory=admin_pb2.GetSpeculationResponse)
    requests: list[Message] = field(default_factory=list)
    """Of the methods that complete or change something."""
    metadata: list[dict[str, str]] = field(default_factory=list)
    remaining_s: list[float] = field(default_factory=list)
    address: str = ""

    async def Complete(self, request, context):  # noqa: ANN001, ANN201
        self._note(context)
        self.requests.append(request)
        for event in self.answer:
            yield event
        await self._fail(context)
        if self.is_hanging:
            await asyncio.Event().wait()

    async def GetStatus(self, request, context):  # noqa: ANN001, ANN201
        self._note(context)
        await self._fail(context)
        return self.status

    async def GetMetrics(self, request, context):  # noqa: ANN001, ANN201
        if self.metrics is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return admin_pb2.GetMetricsResponse(text=self.metrics, uptime_s=1.0)

    async def GetSpeculation(self, request, context):  # noqa: ANN001, ANN201
        return self.speculation

    async def SetSpeculation(self, request, context):  # noqa: ANN001, ANN201
        await self._fail(context)
        self.requests.append(request)
        rows = request.schedule or [admin_pb2.SpeculationRow(first_batch_size=1, last_batch_size=8)]
        return admin_pb2.SetSpeculationResponse(schedule=rows, since_unix_ms=1_800_000_000_000, mode=request.mode)

    async def Drain(self, request, context):  # noqa: ANN001, ANN201
        self.requests.append(request)
        return admin_pb2.DrainResponse(live_requests=3)

    def _note(self, context: grpc.aio.ServicerContext) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        self.remaining_s.append(context.time_remaining())

    async def _fail(self, context: grpc.aio.ServicerContext) -> None:
        if self.failure:
            await self.failure.abort(context)


Serve = Callable[..., Awaitable[FakeServer]]
Run = Callable[..., Awaitable[Result]]
