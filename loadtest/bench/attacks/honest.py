"""Honest users beside an attack: a constant request rate, and when each of their requests has text."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import caller_metadata
from loadtest.bench.attacks.attack import typed
from loadtest.bench.attacks.http2 import Metadata
from loadtest.bench.runner.loops import open_loop

USERS = 8
REQUESTS_PER_S = 4.0
"""Of each user."""
IN_TIME_MS = 200.0
GIVES_UP_S = 1.0
_CONNECTS_S = 10.0
# A connection for each user; by default gRPC shares one between channels to the same address.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


class HonestUsers(AsyncExitStack):
    """Users with a constant request rate, open loop. Users with odd numbers open a Session stream per request."""

    def __init__(self, address: str, metadata: Sequence[Metadata] = ()) -> None:
        """Connect when the context is entered. Users send `metadata` in turn besides their names."""
        super().__init__()
        self._address = address
        names = [caller_metadata(f"honest-{number}") or () for number in range(USERS)]
        self._metadata = [(*name, *(metadata[i % len(metadata)] if metadata else ())) for i, name in enumerate(names)]
        self._channels: list[grpc.aio.Channel] = []
        self._num_asked = 0

    async def __aenter__(self) -> "HonestUsers":
        """Connect.

        Raises:
            TimeoutError: one can't.

        """
        for _ in range(USERS):
            channel = await self.enter_async_context(grpc.aio.insecure_channel(self._address, options=_OPTIONS))
            await asyncio.wait_for(channel.channel_ready(), _CONNECTS_S)
            self._channels.append(channel)
        return self

    async def ask(self, seconds: float) -> list[float | None]:
        """Let all users send requests for a time; return the milliseconds to the first text of each, None for none."""
        return await open_loop(USERS * REQUESTS_PER_S, seconds, self._first_text_ms)

    async def _first_text_ms(self, number: int, due: float) -> float | None:
        """Return the time from the intended time of a request to its first text; None without text within a second."""
        self._num_asked += 1
        user = number % USERS
        request = typed(f"honest-{user}", self._num_asked)
        stub, came_at = CompletionServiceStub(self._channels[user]), list[float]()
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(GIVES_UP_S):
                if user % 2:
                    await self._ask_on_a_stream(stub.Session(metadata=self._metadata[user]), request, came_at)
                else:
                    async for event in stub.Complete(request, metadata=self._metadata[user]):
                        note_text(event, came_at)
        return (came_at[0] - due) * 1000 if came_at else None

    async def _ask_on_a_stream(
        self,
        call: grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse],
        request: pb.CompleteRequest,
        came_at: list[float],
    ) -> None:
        try:
            await call.write(pb.SessionRequest(complete=request))
            async for event in call:
                note_text(event, came_at)
                if event.HasField("end") or event.HasField("refusal"):
                    return
        finally:
            call.cancel()


def note_text(event: pb.CompleteResponse | pb.SessionResponse, came_at: list[float]) -> None:
    """Note the time at which text came."""
    if event.delta.text or event.end.text:
        came_at.append(time.perf_counter())
