"""A reference server in its own process: it records the time of each request and of each answer.

Its settings are JSON on its command line. It prints its port on standard output, and its records on request.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceServicer, add_CompletionServiceServicer_to_server
from loadtest.processes.child import Child

START_S = 30.0
TIMER_S = 0.005


@dataclass
class Settings:
    least_ms: float = 0.0
    most_ms: float = 0.0
    """Bounds of the time from a request to its text; session and sequence number determine the value."""
    supersedes: bool = True
    shed_every: int = 0
    """Sheds requests with sequence numbers that this divides; 0 sheds none."""
    freeze_after_s: float = 0.0
    freeze_s: float = 0.0
    """Counted from the first request."""
    die_after_s: float = 0.0


@dataclass
class Books:
    """Times are of the monotonic clock, which is one for all processes."""

    received: dict[str, float] = field(default_factory=dict)
    text_sent: dict[str, float] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    cancels: int = 0
    streams: int = 0
    late_ms: list[float] = field(default_factory=list)
    """Lateness of its own timers: the noise of the machine, a lower bound for the error of any measurement."""


def numbers_of(name: str) -> tuple[int, int]:
    """Return the session's number and the request's sequence, from a name in the books."""
    session, _, sequence = name.rpartition("-")[2].partition("/")
    return int(session), int(sequence)


class Golden(CompletionServiceServicer):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.books = Books()
        self.by_name: dict[str, Stream] = {}

    async def Session(self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        self.books.streams += 1
        await context.send_initial_metadata(())
        stream = Stream(self, context)
        try:
            async for message in request_iterator:
                self.plan_accidents()
                await stream.take(message)
        finally:
            stream.close()

    async def Complete(self, request: pb.CompleteRequest, context: Any) -> AsyncIterator[pb.CompleteResponse]:
        self.plan_accidents()
        name = f"{request.session_id}/{request.sequence}"
        self.books.received[name] = time.monotonic()
        try:
            await asyncio.sleep(self.delay_s(name))
        except asyncio.CancelledError:
            self.books.cancels += 1
            raise
        self.books.text_sent[name] = time.monotonic()
        yield pb.CompleteResponse(delta=pb.Delta(text="x"))
        self.books.ended["stop"] += 1
        yield pb.CompleteResponse(end=pb.End(finish_reason=pb.FINISH_REASON_STOP))

    def delay_s(self, name: str) -> float:
        least, most = self.settings.least_ms, self.settings.most_ms
        number = sum(factor * each for factor, each in zip((37, 11), numbers_of(name), strict=True))
        return (least + (most - least) * (number * 0.6180339887 % 1.0)) / 1000

    def plan_accidents(self) -> None:
        """Schedule the configured freeze and death at the first request."""
        if self.books.received:
            return
        loop = asyncio.get_running_loop()
        if self.settings.freeze_s:
            loop.call_later(self.settings.freeze_after_s, time.sleep, self.settings.freeze_s)
        if self.settings.die_after_s:
            loop.call_later(self.settings.die_after_s, os._exit, 1)


class Stream:
    """The stream of a session; it holds one request, and a newer one supersedes it."""

    def __init__(self, golden: Golden, context: Any) -> None:
        self.golden = golden
        self.context = context
        self.held: tuple[int, asyncio.Task[None]] | None = None
        self.answering: set[asyncio.Task[None]] = set()
        self.writing = asyncio.Lock()

    async def take(self, message: pb.SessionRequest) -> None:
        books, settings = self.golden.books, self.golden.settings
        if message.HasField("cancel"):
            books.cancels += 1
            if self.held is not None and self.held[0] == message.cancel.sequence:
                await self.let_go(pb.FINISH_REASON_CANCELLED)
            return
        request = message.complete
        name = f"{request.session_id}/{request.sequence}"
        books.received[name] = time.monotonic()
        if settings.supersedes:
            await self.let_go(pb.FINISH_REASON_SUPERSEDED)
        if settings.shed_every and request.sequence % settings.shed_every == 0:
            await self.end(request.sequence, pb.FINISH_REASON_SHED)
            return
        answering = asyncio.create_task(self.answer(name, request.sequence))
        self.answering.add(answering)
        answering.add_done_callback(self.answering.discard)
        self.held = (request.sequence, answering)

    async def answer(self, name: str, sequence: int) -> None:
        await asyncio.sleep(self.golden.delay_s(name))
        if self.held is not None and self.held[0] == sequence:
            self.held = None
        async with self.writing:
            self.golden.books.text_sent[name] = time.monotonic()
            await self.context.write(pb.SessionResponse(sequence=sequence, delta=pb.Delta(text="x")))
        await self.end(sequence, pb.FINISH_REASON_STOP)

    async def let_go(self, reason: pb.FinishReason) -> None:
        if self.held is not None:
            sequence, answering = self.held
            self.held = None
            answering.cancel()
            await self.end(sequence, reason)

    async def end(self, sequence: int, reason: pb.FinishReason) -> None:
        self.golden.books.ended[pb.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()] += 1
        timings = pb.Timings(queue_ms=1.0, prefill_ms=2.0)
        end = pb.End(finish_reason=reason, usage=pb.Usage(completion_tokens=3), timings=timings)
        async with self.writing:
            await self.context.write(pb.SessionResponse(sequence=sequence, end=end))

    def close(self) -> None:
        for task in self.answering:
            task.cancel()


async def watch_timers(books: Books) -> None:
    while True:
        due = time.monotonic() + TIMER_S
        await asyncio.sleep(TIMER_S)
        books.late_ms.append((time.monotonic() - due) * 1000)


async def serve(settings: Settings) -> None:
    golden = Golden(settings)
    server = grpc.aio.server()
    add_CompletionServiceServicer_to_server(golden, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    watching = asyncio.create_task(watch_timers(golden.books))
    print(json.dumps({"port": port}), flush=True)  # noqa: T201
    while line := await asyncio.to_thread(sys.stdin.readline):
        assert json.loads(line) == {"want": "books"}
        print(json.dumps(vars(golden.books)), flush=True)  # noqa: T201
    watching.cancel()
    await server.stop(0)


@dataclass
class GoldenServer:
    """The process, from outside."""

    child: Child
    host: str

    def books(self) -> Books:
        found = self.child.ask({"want": "books"}, START_S)
        return Books(**(found | {"ended": Counter(found["ended"])}))


@contextmanager
def golden_server(**settings: float) -> Iterator[GoldenServer]:
    command = (sys.executable, "-m", "tests.loadtest.golden", json.dumps(settings))
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Child("golden", command, env=env, is_piped=True) as child:
        yield GoldenServer(child, f"127.0.0.1:{child.read_json(START_S)['port']}")


if __name__ == "__main__":
    asyncio.run(serve(Settings(**json.loads(sys.argv[1]))))
