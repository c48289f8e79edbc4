"""The traffic of the load tester as requests of the server, and session streams without a transport.

The server's own session handling is called as gRPC would call it.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc

from completion.v1 import completion_pb2 as pb
from completion_server.admission.callers import Callers
from completion_server.admission.settings import AdmissionSettings, LimitSettings
from completion_server.core.clock import Deadline
from completion_server.core.request import Caller, Mode, Request, Trigger
from completion_server.core.trace_context import no_trace
from completion_server.rpc.intake import Intake
from completion_server.rpc.session import SessionCall
from completion_server.rpc.stream_ends import StreamTimes
from completion_server.serving.service import Service
from loadtest.targets.editor import is_typed_along
from loadtest.traffic import typed
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace, TypedRequest

_NEVER_S = 1e6
_STALL_S = 5.0
_PEER = "192.0.2.1"
_CALLER = Caller(connection=f"{_PEER}:50000", peer=_PEER)
_MAX_DEADLINE_S = 30.0
_TRIGGERS: Mapping[typed.Trigger, tuple[Trigger, "pb.Trigger.ValueType"]] = {
    typed.Trigger.AUTOMATIC: (Trigger.AUTOMATIC, pb.TRIGGER_AUTOMATIC),
    typed.Trigger.EXPLICIT: (Trigger.EXPLICIT, pb.TRIGGER_EXPLICIT),
    typed.Trigger.PREFETCH: (Trigger.PREFETCH, pb.TRIGGER_PREFETCH),
}


@dataclass(frozen=True, slots=True)
class Key:
    """A request of the trace, also as the server's type and as the message that an editor sends."""

    request: Request
    message: bytes
    typed: typed.TypedRequest


def keys_of(trace: Trace, scenario: Scenario, run: str) -> list[Key]:
    """Return the requests of a trace in the order of their times. `run` makes the callers of one pass over it new."""
    keys = [key for session in trace.sessions for key in _keys(session, scenario, run)]
    return sorted(keys, key=lambda key: key.typed.intended_at_s)


def _keys(session: typed.TypedSession, scenario: Scenario, run: str) -> Iterator[Key]:
    name = f"{run}/{session.number}"
    caller = Caller("", name, connection=f"{_PEER}:50000", peer=_PEER, stream=session.number + 1)
    mode = Mode.MULTI_LINE if scenario.editor.mode == "multi_line" else Mode.SINGLE_LINE
    for each in session.requests:
        request = Request(
            id=f"{session.number}/{each.sequence}",
            caller=caller,
            sequence=each.sequence,
            document_uri=session.document_uri,
            language_id=session.language_id,
            prefix=each.prefix,
            suffix=each.suffix,
            max_tokens=scenario.editor.max_tokens,
            received_at=each.intended_at_s,
            trigger=_TRIGGERS[each.trigger][0],
            mode=mode,
            deadline=Deadline.after(_MAX_DEADLINE_S, each.intended_at_s),
        )
        yield Key(request, _message(request, _TRIGGERS[each.trigger][1]), each)


def _message(request: Request, trigger: "pb.Trigger.ValueType") -> bytes:
    message = pb.CompleteRequest(
        session_id=request.caller.session,
        sequence=request.sequence,
        document_uri=request.document_uri,
        language_id=request.language_id,
        prefix=request.prefix,
        suffix=request.suffix,
        trigger=trigger,
        mode=pb.MODE_MULTI_LINE if request.mode is Mode.MULTI_LINE else pb.MODE_SINGLE_LINE,
        max_tokens=request.max_tokens,
        temperature=0.0,
    )
    return pb.SessionRequest(complete=message).SerializeToString()


class EditorCall:
    """The context of a call: an editor's messages come in, the server's answers go out. All are bytes."""

    def __init__(self) -> None:
        """Open the call."""
        self._messages: deque[bytes] = deque()
        self._is_over = False
        self._waiting: asyncio.Future[None] | None = None
        self._texts: dict[int, str] = {}
        """Text of the open requests, by sequence number."""

    def send_nowait(self, key: Key) -> None:
        """Have the server receive a request, and its cancellation at the user's next key."""
        request = key.typed
        self._texts[request.sequence] = ""
        self._receive(key.message)
        asyncio.get_running_loop().call_at(request.next_key_at_s, self._key_pressed, request)

    def close_nowait(self) -> None:
        """Have the server receive the end of the call."""
        self._is_over = True
        self._wake()

    async def read(self) -> object:
        """Return the next message, or gRPC's EOF."""
        while not self._messages:
            if self._is_over:
                return grpc.aio.EOF
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._messages.popleft()

    async def write(self, message: pb.SessionResponse) -> None:
        """Serialise an answer's part, as gRPC does."""
        message.SerializeToString()
        if message.HasField("end"):
            self._texts.pop(message.sequence, None)
        elif message.sequence in self._texts:
            self._texts[message.sequence] += message.delta.text

    def _key_pressed(self, request: TypedRequest) -> None:
        text = self._texts.get(request.sequence)
        if text is not None and not is_typed_along(text, request):
            self._receive(pb.SessionRequest(cancel=pb.Cancel(sequence=request.sequence)).SerializeToString())

    def _receive(self, data: bytes) -> None:
        self._messages.append(data)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


async def serve(service: Service, keys: Sequence[Key]) -> None:
    """Serve the requests at their times, each session on a stream of its own, and wait for the last end."""
    loop, limits = asyncio.get_running_loop(), LimitSettings()
    intake = Intake(limits, Callers(AdmissionSettings(), limits), _NEVER_S, service.now, no_trace)
    times = StreamTimes(_NEVER_S, _NEVER_S, _NEVER_S, _STALL_S)
    contexts = {key.typed.session: EditorCall() for key in keys}
    async with asyncio.TaskGroup() as group:
        for context in contexts.values():
            group.create_task(SessionCall(service, intake, times, context, _CALLER).run())  # type: ignore[arg-type]
        for key in keys:
            await asyncio.sleep(key.typed.intended_at_s - loop.time())
            contexts[key.typed.session].send_nowait(key)
        await service.runner.wait_idle()
        for context in contexts.values():
            context.close_nowait()
