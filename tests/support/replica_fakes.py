"""Replicas whose answers a test decides: real gRPC servers without an engine."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceServicer, add_CompletionServiceServicer_to_server
from completion_client import CompletionClient, Endpoint, Regions, RegionSettings, ServiceError

ONE_REGION = RegionSettings(tier_margin_ms=60_000, silence_min_s=10.0, silence_max_s=10.0)
STOP = pb.FINISH_REASON_STOP


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Losses:
    """Records the calls of a StreamListener."""

    errors: list[ServiceError] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)

    @property
    def num_back(self) -> int:
        return len(self.away_s)

    def on_lost(self, error: ServiceError) -> None:
        self.errors.append(error)

    def on_reconnected(self, away_s: float) -> None:
        self.away_s.append(away_s)


@dataclass
class FakeReplica(CompletionServiceServicer, health_pb2_grpc.HealthServicer):
    """Answers each request with `end`, or only when `may_answer` is set, and health checks when `may_check` is set."""

    end: pb.End = field(default_factory=lambda: pb.End(finish_reason=STOP, text="text"))
    failure: grpc.StatusCode | None = None
    """Fails calls of `Complete` instead."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    may_check: asyncio.Event = field(default_factory=asyncio.Event)
    first_texts: dict[int, str] = field(default_factory=dict)
    """What comes at once, by the request's sequence number."""
    seen: list[tuple[str, int]] = field(default_factory=list)
    """The messages of sessions, and the calls of `ReportFeedback` as "report": the kind and the sequence number."""
    timeouts_ms: list[int] = field(default_factory=list)
    """Those of the requests of sessions; 0 for none."""
    num_sessions: int = 0
    num_checks: int = 0
    metadata: list[dict[str, str]] = field(default_factory=list)
    address: str = ""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.resume()

    def stall(self) -> None:
        """Send nothing more, as a process that is suspended."""
        self.may_answer.clear()
        self.may_check.clear()

    def resume(self) -> None:
        """Go on where it stalled."""
        self.may_answer.set()
        self.may_check.set()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address)

    def sequences(self, kind: str) -> list[int]:
        return [sequence for each, sequence in self.seen if each == kind]

    async def Complete(self, request, context):  # noqa: ANN001, ANN201
        self.metadata.append(dict(context.invocation_metadata()))
        if text := self.first_texts.get(request.sequence):
            yield pb.CompleteResponse(delta=pb.Delta(text=text))
        await self.may_answer.wait()
        if self.failure is not None:
            await context.abort(self.failure, "why")
        yield pb.CompleteResponse(end=self.end)

    async def Session(self, request_iterator, context):  # noqa: ANN001, ANN201
        self.num_sessions += 1
        async with asyncio.TaskGroup() as answers:
            async for message in request_iterator:
                kind = message.WhichOneof("event")
                sequence = getattr(message, kind).sequence
                self.seen.append((kind, sequence))
                if kind == "complete":
                    self.timeouts_ms.append(message.complete.timeout_ms)
                    answers.create_task(self._answer(sequence, context))

    async def ReportFeedback(self, request, context):  # noqa: ANN001, ANN201
        self.seen.append(("report", request.sequence))
        return pb.ReportFeedbackResponse()

    async def Check(self, request, context):  # noqa: ANN001, ANN201
        self.num_checks += 1
        await self.may_check.wait()
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def _answer(self, sequence: int, context: grpc.aio.ServicerContext) -> None:
        if text := self.first_texts.get(sequence):
            await self._write(pb.SessionResponse(sequence=sequence, delta=pb.Delta(text=text)), context)
        await self.may_answer.wait()
        await self._write(pb.SessionResponse(sequence=sequence, end=self.end), context)

    async def _write(self, response: pb.SessionResponse, context: grpc.aio.ServicerContext) -> None:
        async with self._writing:
            await context.write(response)


@asynccontextmanager
async def fake_replicas(*replicas: FakeReplica) -> AsyncIterator[None]:
    """Run servers."""
    async with AsyncExitStack() as stack:
        for each in replicas:
            server = grpc.aio.server()
            add_CompletionServiceServicer_to_server(each, server)
            health_pb2_grpc.add_HealthServicer_to_server(each, server)
            stack.callback(each.resume)
            each.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, 0)
        yield


@asynccontextmanager
async def view_of(
    *endpoints: Endpoint | str,
    connect_timeout_s: float = 2.0,
    clock: Clock | None = None,
    settings: RegionSettings = ONE_REGION,
) -> AsyncIterator[CompletionClient]:
    """Yield the view of one user, who prefers the endpoints in this order."""

    def given_order(found: Iterable[Endpoint], _user: str, _tenant: str) -> tuple[Endpoint, ...]:
        return tuple(found)

    async with Regions(
        [Endpoint(each) if isinstance(each, str) else each for each in endpoints],
        settings=settings,
        now=clock or Clock(),
    ) as regions:
        yield CompletionClient(regions, user="ada", order=given_order, connect_timeout_s=connect_timeout_s)


def pass_over(view: CompletionClient, endpoint: Endpoint) -> None:
    """Make a user's next request go elsewhere, as after a refusal, until the clock is set forward."""
    view._replicas.pass_over(endpoint, "a test")
