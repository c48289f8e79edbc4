"""This project's server as a target: a `Session` stream for each editor, which just sends its next request."""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.metrics import GENERATED_TOKENS, read_counter
from loadtest.open_loop import Editor, Outcome, Record, TargetError
from loadtest.trace import Trace, TypedSession

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

_CONNECT_S = 10.0
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
"""gRPC would share one connection between channels to the same address."""

_OUTCOMES = {
    pb.FINISH_REASON_SUPERSEDED: Outcome.SUPERSEDED,
    pb.FINISH_REASON_SHED: Outcome.SHED,
    pb.FINISH_REASON_DEADLINE: Outcome.DEADLINE,
    pb.FINISH_REASON_CANCELLED: Outcome.HUNG_UP,
}
_WHOLE = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)


class SessionTarget:
    """A server that is asked over gRPC. Its connections are kept from trace to trace."""

    def __init__(
        self, name: str, address: str, metrics_url: str, max_tokens: int, *, cancels_at_key: bool = False
    ) -> None:
        """Ask the server at an address; `metrics_url` is where it shows its engine's counters.

        With `cancels_at_key` an editor says so at once when a key makes a request stale, and not only with its next
        request, a debounce later.
        """
        self._cancels_at_key = cancels_at_key
        self.name = name
        self._address = address
        self._metrics_url = metrics_url
        self._max_tokens = max_tokens
        self._channels: list[grpc.aio.Channel] = []

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        """Open a stream for each session, on a connection of its own, as a user that nobody was before."""
        await self._connect(len(trace.sessions))
        run_id = uuid.uuid4().hex[:8]
        async with AsyncExitStack() as stack:
            found: list[_SessionEditor] = []
            for session, channel in zip(trace.sessions, self._channels, strict=False):
                name = f"{run_id}-{session.number}"
                stale = _typed_away(session) if self._cancels_at_key else {}
                editor = _SessionEditor(channel, name, session.document_uri, self._max_tokens, stale)
                found.append(await stack.enter_async_context(editor))
            yield found

    async def generated_tokens(self) -> float:
        """Return the engine's counter."""
        return await asyncio.to_thread(read_counter, self._metrics_url, GENERATED_TOKENS)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up."""
        for channel in self._channels:
            await channel.close()

    async def _connect(self, count: int) -> None:
        while len(self._channels) < count:
            self._channels.append(grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS))
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.gather(*(channel.channel_ready() for channel in self._channels[:count]))
        except TimeoutError:
            msg = f"{self.name}: no connection to {self._address}"
            raise TargetError(msg) from None


def _typed_away(session: TypedSession) -> dict[int, str]:
    """Return what is typed after each request but the last, by its sequence."""
    return {
        earlier.sequence: later.prefix[len(earlier.prefix) :] for earlier, later in itertools.pairwise(session.requests)
    }


class _SessionEditor:
    """One stream."""

    def __init__(
        self, channel: grpc.aio.Channel, name: str, document_uri: str, max_tokens: int, typed: Mapping[int, str]
    ) -> None:
        self._name = name
        self._typed = typed
        self._document_uri = document_uri
        self._max_tokens = max_tokens
        self._records: dict[int, Record] = {}
        # Between the trace and a stream that may be blocked by what the server does not read.
        self._outgoing: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
        self._call = stub.Session(self._messages(), metadata=(("x-user-id", name),))
        self._failure = ""
        self._reading = asyncio.create_task(self._read())

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor. What is under way for the session is the server's to end."""
        if self._failure:
            record.end(Outcome.ERROR, self._failure)
            return
        request = record.request
        self._records[request.sequence] = record
        message = pb.CompleteRequest(
            session_id=self._name,
            sequence=request.sequence,
            document_uri=self._document_uri,
            language_id="python",
            prefix=request.prefix,
            suffix=request.suffix,
            mode=pb.MODE_MULTI_LINE,
            max_tokens=max_tokens or self._max_tokens,
            temperature=0.0,
        )
        self._outgoing.put_nowait(pb.SessionRequest(complete=message))
        if request.sequence in self._typed:
            at = record.clock.loop_time(request.next_key_at_s)
            asyncio.get_running_loop().call_at(at, self._key_pressed, record)

    def _key_pressed(self, record: Record) -> None:
        """Cancel a request that a key made stale; one whose text the user goes on to type is not."""
        sequence = record.request.sequence
        if sequence not in self._records or (record.text and self._typed[sequence].startswith(record.text[:1])):
            return
        self._outgoing.put_nowait(pb.SessionRequest(cancel=pb.Cancel(sequence=sequence)))

    async def _messages(self) -> AsyncIterator[pb.SessionRequest]:
        while True:
            yield await self._outgoing.get()

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._take(response)
            self._fail("the stream ended")
        except grpc.aio.AioRpcError as error:
            self._fail(f"{error.code().name}: {error.details()}")

    def _take(self, response: pb.SessionResponse) -> None:
        record = self._records.get(response.sequence)
        if record is None:
            return
        if response.HasField("delta"):
            record.text_came(response.delta.text)
            return
        end = response.end
        del self._records[response.sequence]
        record.count_tokens(end.usage.completion_tokens)
        if end.finish_reason in _WHOLE:
            record.end_whole()
        else:
            record.end(_OUTCOMES.get(end.finish_reason, Outcome.ERROR), end.error.message)

    def _fail(self, why: str) -> None:
        self._failure = why
        for record in self._records.values():
            record.end(Outcome.ERROR, why)

    async def __aenter__(self) -> "_SessionEditor":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        self._call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
