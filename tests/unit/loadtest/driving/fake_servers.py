"""A server that answers as a script says, over a `Session` stream."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from aiohttp.test_utils import TestServer

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceServicer, add_CompletionServiceServicer_to_server
from completion_server.api.rpc.status import abort
from completion_server.core.errors import SessionEndedError
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.record import Result
from tests.unit.loadtest.typed import GOES_ON

METRICS = """
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} %d
vllm:generation_tokens_total{engine="1"} 2
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 7
"""


@dataclass
class Counter:
    """A /metrics page that counts up by ten with each look."""

    looks: int = 0

    async def show(self, _request: web.Request) -> web.Response:
        self.looks += 1
        return web.Response(text=METRICS % (self.looks * 10))


@dataclass
class Editors(CompletionServiceServicer):
    """Answers each sequence number by a script; the next request supersedes a held one."""

    script: dict[int, str] = field(default_factory=dict)
    """The action for a sequence number; "answer" if missing."""
    users: list[str] = field(default_factory=list)
    requests: list[pb.CompleteRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    refuses: str = ""
    """Reason to end each stream at once; "" to serve it."""

    async def greet(self, context: Any) -> None:
        self.users.append(dict(context.invocation_metadata())["x-user-id"])
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, self.refuses)

    async def end_stream(self, does: str, sequence: int, context: Any) -> None:
        """End the stream if the script says so; in good order only once."""
        if does == "break":
            await context.abort(grpc.StatusCode.INTERNAL, "it broke")
        if does == "end":
            del self.script[sequence]
            await abort(context, SessionEndedError("the stream ends: it is old", retry_after_ms=0))

    async def Session(
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any
    ) -> AsyncIterator[pb.SessionResponse]:
        await self.greet(context)
        held: int | None = None
        async for message in request_iterator:
            if message.HasField("cancel"):
                self.cancelled.append(message.cancel.sequence)
                if held == message.cancel.sequence:
                    yield _end(held, pb.FINISH_REASON_CANCELLED, tokens=2)
                    held = None
                continue
            request = message.complete
            self.requests.append(request)
            if held is not None:
                yield _end(held, pb.FINISH_REASON_SUPERSEDED, tokens=2)
                held = None
            does = self.script.get(request.sequence, "answer")
            await self.end_stream(does, request.sequence, context)
            if does in {"hold", "along"}:
                held = request.sequence
                yield _delta(request.sequence, "held" if does == "hold" else GOES_ON[:3])
                continue
            for response in _whole(request.sequence, does):
                yield response


def _whole(sequence: int, does: str) -> Iterator[pb.SessionResponse]:
    match does:
        case "answer":
            yield _delta(sequence, "\n    ")
            yield _delta(sequence, "pass")
            yield _end(sequence, pb.FINISH_REASON_STOP, tokens=4)
        case "empty":
            yield _delta(sequence, "  ")
            yield _end(sequence, pb.FINISH_REASON_LENGTH, tokens=1)
        case "shed":
            yield _end(sequence, pb.FINISH_REASON_SHED)
        case "deadline":
            yield _end(sequence, pb.FINISH_REASON_DEADLINE)
        case "error":
            yield _end(sequence, pb.FINISH_REASON_ERROR, error="a field is bad")


def _delta(sequence: int, text: str) -> pb.SessionResponse:
    return pb.SessionResponse(sequence=sequence, delta=pb.Delta(text=text))


def _end(sequence: int, reason: pb.FinishReason, tokens: int = 0, error: str = "") -> pb.SessionResponse:
    end = pb.End(finish_reason=reason, usage=pb.Usage(completion_tokens=tokens))
    if error:
        end.error.message = error
    return pb.SessionResponse(sequence=sequence, end=end)


@asynccontextmanager
async def serving(editors: Editors) -> AsyncIterator[int]:
    """Serve on a port."""
    server = grpc.aio.server()
    add_CompletionServiceServicer_to_server(editors, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def session_target(editors: Editors, *, cancels_at_key: bool = False) -> AsyncIterator[GrpcTarget]:
    app = web.Application()
    app.router.add_get("/metrics", Counter().show)
    async with serving(editors) as port, TestServer(app) as metrics:
        url = str(metrics.make_url("/metrics"))
        spec = TargetSpec("fake", "grpc", (f"127.0.0.1:{port}",), metrics_url=url)
        async with GrpcTarget(spec, ClientSettings(24, cancels_at_key=cancels_at_key)) as target:
            yield target


def outcomes(results: tuple[Result, ...]) -> list[str]:
    return [result.outcome.value for result in results]
