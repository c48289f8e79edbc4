"""An editor with a `Session` stream for its whole life.

It opens a stream that fails again, after a while. A stream that the server ends in good order, since it was idle or
old, is no failure: the editor opens another as soon as it has something to ask.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.targets import ClientSettings, TargetError
from loadtest.targets.channels import SessionChannel
from loadtest.targets.editor import Backoff, is_typed_along
from loadtest.targets.record import NOT_CONNECTED, Outcome, Record
from loadtest.targets.wire import RequestFactory, take_end

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

    Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]

_NEVER_S = float("inf")
_SESSION_ENDED = "SESSION_ENDED"
"""The server's reason for ending a stream in good order."""


@dataclass(slots=True)
class StreamLog:
    """What became of a target's streams."""

    reconnects_s: list[float] = field(default_factory=list)
    """How long each was away that came back."""
    num_lost: int = 0
    """How often one was lost."""
    why: str = ""
    """The last of the reasons."""


@dataclass(slots=True)
class _Open:
    """A request that is not answered yet."""

    record: Record
    message: pb.SessionRequest
    is_cancelled: bool = False


class SessionEditor:
    """One stream. What is under way for the session is the server's to end."""

    def __init__(
        self, channel: SessionChannel, factory: RequestFactory, settings: ClientSettings, log: StreamLog, seed: str
    ) -> None:
        """Open it on a channel that is connected; what becomes of it is added to `log`."""
        self._channel = channel
        self._factory = factory
        self._settings = settings
        self._log = log
        self._backoff = Backoff(settings.backoff_min_s, settings.backoff_max_s, seed)
        self._requests: dict[int, _Open] = {}
        self._outgoing: deque[pb.SessionRequest] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._call: Call | None = None
        self._lost_at_s: float | None = None
        self._is_closing = False
        self._is_resting = False
        """Whether the server has ended the stream in good order and no other is open yet."""
        self._wants_stream = asyncio.Event()
        self._open(channel.channel())
        self._living = asyncio.create_task(self._live())

    @property
    def is_connected(self) -> bool:
        """See Editor."""
        return self._is_resting or (self._call is not None and self._lost_at_s is None)

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor."""
        if self._call is None and not self._is_resting:
            record.end_unsent(NOT_CONNECTED)
            return
        request = record.request
        message = pb.SessionRequest(complete=self._factory.message(record, max_tokens))
        self._requests[request.sequence] = _Open(record, message)
        self._post(message)
        loop = asyncio.get_running_loop()
        if self._settings.cancels_at_key and request.next_key_at_s != _NEVER_S:
            loop.call_at(record.clock.loop_time(request.next_key_at_s), self._key_pressed, record)
        if self._settings.deadline_s:
            deadline_s = request.intended_at_s + self._settings.deadline_s
            loop.call_at(record.clock.loop_time(deadline_s), self._deadline_passed, record)

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """See Editor."""
        call = self._call
        self._lose("the connection was dropped")
        self._channel.hang_up(host_shift)
        if call is not None:
            call.cancel()

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; return what takes until it has ended."""
        self._is_closing = True
        tasks = [task for task in (self._living, self._writing) if task is not None]
        for task in tasks:
            task.cancel()
        if self._call is not None:
            self._call.cancel()
        return tasks

    def _key_pressed(self, record: Record) -> None:
        """Cancel a request that a key made stale; one whose text the user goes on to type is not."""
        if self._is_open(record) and not is_typed_along(record.text, record.request):
            self._cancel(record)

    def _deadline_passed(self, record: Record) -> None:
        if self._is_open(record):
            self._cancel(record)
            del self._requests[record.request.sequence]
            record.end(Outcome.DEADLINE)

    def _is_open(self, record: Record) -> bool:
        request = self._requests.get(record.request.sequence)
        return request is not None and request.record is record

    def _cancel(self, record: Record) -> None:
        self._requests[record.request.sequence].is_cancelled = True
        self._post(pb.SessionRequest(cancel=pb.Cancel(sequence=record.request.sequence)))

    def _post(self, message: pb.SessionRequest) -> None:
        """Write when the stream can take it: the schedule does not wait for a server that does not read."""
        if self._call is None:
            self._wants_stream.set()  # all open requests are sent on the next one
            return
        self._outgoing.append(message)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(_write_all(self._call, self._outgoing))

    async def _live(self) -> None:
        while True:
            why = await self._read_until_lost()
            if why is None:
                if await self._rest():
                    continue
                why = "no connection for another stream"
            self._lose(why)
            self._channel.hang_up()
            while self._call is None:
                await asyncio.sleep(self._backoff.next_s())
                await self._come_back()

    async def _rest(self) -> bool:
        """Wait until there is something to ask, and open another stream for it; return whether that was possible."""
        self._call, self._is_resting = None, True
        for sequence in [sequence for sequence, each in self._requests.items() if each.is_cancelled]:
            self._requests.pop(sequence).record.end(Outcome.HUNG_UP)
        if not self._requests:
            self._wants_stream.clear()
            await self._wants_stream.wait()
        try:
            channel = await self._channel.ready()
        except TargetError:
            return False
        if not self._is_resting:
            return False  # the connection was dropped meanwhile
        self._is_resting = False
        self._open(channel)
        for each in self._requests.values():
            self._post(each.message)
        return True

    async def _come_back(self) -> None:
        try:
            channel = await self._channel.ready()
        except TargetError:
            self._channel.hang_up()
            return
        if channel is not self._channel.channel():
            return  # sent to another host meanwhile
        self._open(channel)

    def _open(self, channel: grpc.aio.Channel) -> None:
        stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
        self._outgoing = deque()
        self._writing = None
        self._call = stub.Session(metadata=self._factory.metadata)

    async def _read_until_lost(self) -> str | None:
        """Take answers until there are no more; return why, None where the server ended the stream in good order."""
        call = self._call
        if call is None:
            return "the connection was dropped"
        pause_s = self._factory.session.reads_every_s
        try:
            await call.initial_metadata()
            self._note_back(call)
            while isinstance(response := await call.read(), pb.SessionResponse):
                self._backoff.reset()
                self._take(response)
                if pause_s:
                    await asyncio.sleep(pause_s)
        except grpc.aio.AioRpcError as error:
            if _is_ended_in_good_order(error):
                return None
            return f"{error.code().name}: {error.details()}"
        except asyncio.CancelledError:
            # gRPC says it also where the call was cancelled, and not this task.
            if self._is_closing or not call.cancelled():
                raise
            return "the connection was dropped"
        return "the stream ended"

    def _note_back(self, call: "Call") -> None:
        """The server has taken the stream up, or sent its first answer."""
        if self._lost_at_s is not None and not call.done():
            self._log.reconnects_s.append(asyncio.get_running_loop().time() - self._lost_at_s)
            self._lost_at_s = None

    def _take(self, response: pb.SessionResponse) -> None:
        request = self._requests.get(response.sequence)
        if request is None:
            return
        record = request.record
        record.num_messages += 1
        if response.HasField("delta"):
            record.text_came(response.delta.text)
        elif response.HasField("end"):
            del self._requests[response.sequence]
            take_end(record, response.end)

    def _lose(self, why: str) -> None:
        """Fail what is open, once for each stream."""
        if self._call is None and not self._is_resting:
            return
        self._call, self._is_resting = None, False
        self._wants_stream.set()
        self._log.num_lost += 1
        self._log.why = why
        if self._lost_at_s is None:  # else it was opened again, but never taken up
            self._lost_at_s = asyncio.get_running_loop().time()
        requests, self._requests = self._requests, {}
        for each in requests.values():
            each.record.end(Outcome.ERROR, why)


def _is_ended_in_good_order(error: grpc.aio.AioRpcError) -> bool:
    status, info = rpc_status.from_call(cast("grpc.Call", error)), ErrorInfo()
    return status is not None and any(each.Unpack(info) and info.reason == _SESSION_ENDED for each in status.details)


async def _write_all(call: "Call", outgoing: deque[pb.SessionRequest]) -> None:
    try:
        while outgoing:
            await call.write(outgoing.popleft())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # who reads hears why
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
