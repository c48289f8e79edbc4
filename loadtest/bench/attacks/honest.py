"""The users whose service the benchmark measures: 8 of them, each on a connection of its own, 4 requests/s each."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

USERS = 8
PERIOD_S = 0.25
IN_TIME_MS = 200.0
_GIVES_UP_S = 1.0
_MAX_TOKENS = 16
_LINES = "".join(f"def area_{number}(width, height):\n    return width * height\n\n\n" for number in range(40))
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # gRPC would share one connection between channels to the same address
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(slots=True)
class HonestService:
    """The service that the users got in a phase."""

    first_text_ms: list[float | None] = field(default_factory=list)
    """Time to first text of each request; None without text within a second."""

    @property
    def share_in_time(self) -> float:
        """The share of the requests that had text in time."""
        in_time = sum(each is not None and each <= IN_TIME_MS for each in self.first_text_ms)
        return in_time / max(1, len(self.first_text_ms))


class HonestUser:
    """A user with a constant request rate, open loop. Users with odd numbers open a Session stream per request."""

    def __init__(self, number: int, channel: grpc.aio.Channel) -> None:
        """Prepare a user with its own channel."""
        self._number = number
        self._stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
        self._sequence = itertools.count(1)
        self._metadata = (("x-user-id", f"honest-{number}"),)

    async def ask_for(self, seconds: float, service: HonestService) -> None:
        """Send requests for a time, and record them in `service`."""
        loop = asyncio.get_running_loop()
        begin = loop.time() + self._number * PERIOD_S / USERS
        async with asyncio.TaskGroup() as group:
            for number in range(round(seconds / PERIOD_S)):
                due = begin + number * PERIOD_S
                await asyncio.sleep(due - loop.time())
                group.create_task(self._ask(due, service))

    async def _ask(self, due: float, service: HonestService) -> None:
        place = len(service.first_text_ms)
        service.first_text_ms.append(None)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(_GIVES_UP_S):
                if await self._gets_text():
                    service.first_text_ms[place] = (loop.time() - due) * 1000

    async def _gets_text(self) -> bool:
        """Send a request, by a call or on a stream of its own, and wait for its first text; return whether any came."""
        given: dict[str, Any] = {"timeout": _GIVES_UP_S, "metadata": self._metadata}
        request, is_session = self._request(), self._number % 2
        call: Any = self._stub.Session(**given) if is_session else self._stub.Complete(request, **given)
        try:
            if is_session:
                await call.write(pb.SessionRequest(complete=request))
            async for response in call:
                if response.delta.text or response.end.text:
                    return True
                if response.HasField("end"):
                    break
        except (asyncio.InvalidStateError, asyncio.CancelledError):  # gRPC raises them for a write to an ended call
            if not call.done():
                raise
        finally:
            call.cancel()
        return False

    def _request(self) -> pb.CompleteRequest:
        sequence = next(self._sequence)
        return pb.CompleteRequest(
            session_id=f"honest-{self._number}",
            sequence=sequence,
            document_uri=f"file:///{self._number}.py",
            language_id="python",
            prefix=f"{_LINES}total_{sequence} = ",
            suffix="\n\nprint(area_1(2, 3))\n",
            mode=pb.MODE_SINGLE_LINE,
            max_tokens=_MAX_TOKENS,
        )


@asynccontextmanager
async def honest_users(address: str) -> AsyncIterator[list[HonestUser]]:
    """Yield the users, connected."""
    channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(USERS)]
    try:
        for channel in channels:
            await asyncio.wait_for(channel.channel_ready(), 10)
        yield [HonestUser(number, channel) for number, channel in enumerate(channels)]
    finally:
        for channel in channels:
            await channel.close()


async def serve_for(users: list[HonestUser], seconds: float) -> HonestService:
    """Let all users send requests for a time; return their service."""
    service = HonestService()
    async with asyncio.TaskGroup() as group:
        for user in users:
            group.create_task(user.ask_for(seconds, service))
    return service
