"""Requests of named users over one connection, alone or at a constant rate: what benchmarks of replicas ask."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import caller_metadata
from loadtest.bench.runner.figures import percentile
from loadtest.bench.runner.schedule import AsyncClosing

_TIMEOUT_S = 20.0
_USERS = 20
_TOKENS = 8
_DOCUMENT = "    value = compute(item, 3)\n" * 55
"""About 1,500 characters."""
_ENDED_WELL = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_sequences = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and its answer. All times are from the send."""

    reason: str
    """The finish reason, the reason of a shed request, or the status of a call that failed."""
    first_ms: float
    """Time to the first event."""
    total_ms: float
    ended_at: float
    """time.perf_counter() at the end."""

    @property
    def is_answered(self) -> bool:
        """Whether it had an answer that was not cut short."""
        return self.reason in {pb.FinishReason.Name(reason) for reason in _ENDED_WELL}


class EditorConnection(AsyncClosing):
    """A connection to one server."""

    def __init__(self, address: str) -> None:
        """Connect with the first request."""
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        self._stub: Any = CompletionServiceStub(self._channel)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def ask(
        self, user: str, prefix: str, max_tokens: int, *, session: str = "s", begun: asyncio.Event | None = None
    ) -> Asked:
        """Ask and read the answer to its end; `begun` is set at its first event."""
        request = pb.CompleteRequest(
            session_id=session, sequence=next(_sequences), prefix=prefix, max_tokens=max_tokens,
            mode=pb.MODE_MULTI_LINE, document_uri=f"untitled:{user}",
        )  # fmt: skip
        sent_at, first_ms, reason = time.perf_counter(), 0.0, ""
        try:
            async for event in self._stub.Complete(request, timeout=_TIMEOUT_S, metadata=caller_metadata(user)):
                first_ms = first_ms or (time.perf_counter() - sent_at) * 1000
                if begun is not None:
                    begun.set()
                if event.HasField("end"):
                    reason = pb.FinishReason.Name(event.end.finish_reason)
                    if event.end.finish_reason == pb.FINISH_REASON_SHED:
                        reason = pb.ShedReason.Name(event.end.shed_reason)
        except grpc.aio.AioRpcError as error:
            reason = error.code().name
        ended_at = time.perf_counter()
        if begun is not None:
            begun.set()
        return Asked(reason, first_ms, (ended_at - sent_at) * 1000, ended_at)


class OpenLoop:
    """Twenty users who ask at a constant rate, whatever the answers take. Each has a document, and types at its end."""

    def __init__(self, connection: EditorConnection, rate: float) -> None:
        """Ask `rate` times a second over `connection`."""
        self._connection = connection
        self._pause_s = 1 / rate
        self._number = _USERS
        self.every: list[Asked] = []
        """All requests so far."""

    async def open_documents(self) -> None:
        """Ask once for each user in turn: the prefix cache has the documents then. These requests do not count."""
        for number in range(_USERS):
            await self._ask(number)

    async def window(self, seconds: float) -> list[Asked]:
        """Ask for some time, and return the requests sent in it."""
        tasks: list[asyncio.Task[Asked]] = []
        begin, count = time.perf_counter(), max(1, round(seconds / self._pause_s))
        for at in range(count):
            await asyncio.sleep(max(0.0, begin + at * self._pause_s - time.perf_counter()))
            self._number += 1
            tasks.append(asyncio.create_task(self._ask(self._number)))
        answers = list(await asyncio.gather(*tasks))
        self.every += answers
        return answers

    async def _ask(self, number: int) -> Asked:
        user = f"user-{number % _USERS}"
        return await self._connection.ask(user, f"# {user}\n{_DOCUMENT}value_{number} = ", _TOKENS, session=user)


def p99_ms(window: Sequence[Asked]) -> float:
    """Return the 99th percentile of the time to the first event."""
    return percentile([each.first_ms for each in window], 99)
