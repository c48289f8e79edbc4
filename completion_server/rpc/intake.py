"""Admits calls and receives their messages. Refuses a call before its message is received or parsed if possible.

On the wire, a method with one request is a stream with one message. The services register such methods as streams, so
that a handler runs when the headers of its call arrive, and decides whether to receive the message.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion_server.admission.callers import AUTHORIZATION, Callers
from completion_server.admission.settings import LimitSettings
from completion_server.core.credential import Scope
from completion_server.core.errors import DeadlineError, InvalidRequestError
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE, BeginTrace, no_trace
from completion_server.rpc.messages import convert
from completion_server.rpc.messages.decoder import Decoder
from completion_server.rpc.metadata import identify, metadata_of

_MAX_RECEIVING = 1024
"""Calls whose messages are received at the same time. Each may hold nearly a whole message, for
`ServerSettings.receive_timeout_s`: callers who hold back the last byte would fill the memory. A message takes
milliseconds, so the one that has taken longest ends for another one."""


class Intake:
    """Receives the calls of one listener."""

    def __init__(
        self,
        limits: LimitSettings,
        callers: Callers,
        receive_timeout_s: float,
        now: Callable[[], float],
        begin_trace: BeginTrace = no_trace,
    ) -> None:
        """Receive messages of `callers` within `limits`, each in `receive_timeout_s`. `now` returns the time in s."""
        self.limits = limits
        self.callers = callers
        self._begin_trace = begin_trace
        self._receiving: dict[asyncio.Timeout, None] = {}
        """Those of the messages that are received now, the oldest first."""
        self._receive_timeout_s = receive_timeout_s
        self._now = now
        self.decode_complete = Decoder(pb.CompleteRequest, limits)
        self.decode_session = Decoder(pb.SessionRequest, limits)
        self.decode_feedback = Decoder(pb.ReportFeedbackRequest, limits)

    async def enter(self, context: Any, scope: Scope = Scope.COMPLETE) -> Caller:
        """Return the caller of a call, who may do what `scope` names.

        Raises:
            CompletionError: as `Callers.identify`.

        """
        return await identify(self.callers, context, metadata_of(context), scope)

    async def enter_again(self, context: Any, authorization: str) -> Caller:
        """Return the caller of an open stream by a new token, in the form of the metadata `authorization`.

        Raises:
            CompletionError: as `Callers.identify`.

        """
        return await identify(self.callers, context, metadata_of(context) | {AUTHORIZATION: authorization})

    async def receive(self, context: Any) -> bytes:
        """Return the one message of a call.

        Raises:
            DeadlineError: the message was not received in time, or before too many others came.
            InvalidRequestError: the call has no message.

        """
        turn = asyncio.timeout(self._receive_timeout_s)
        try:
            async with turn:
                self._begin(turn)
                data = await context.read()
        except TimeoutError:
            in_time = f"within {self._receive_timeout_s:g} s"
            bound = in_time if turn in self._receiving else f"before {_MAX_RECEIVING} others came"
            msg = f"the request was not received {bound}"
            raise DeadlineError(msg) from None
        finally:
            self._receiving.pop(turn, None)
        if data is grpc.aio.EOF:
            raise InvalidRequestError("message", "must be sent, but the call ended without one")
        received: bytes = data
        return received

    def _begin(self, turn: asyncio.Timeout) -> None:
        self._receiving[turn] = None
        if len(self._receiving) > _MAX_RECEIVING:
            oldest = next(iter(self._receiving))
            del self._receiving[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())

    def request_of(
        self,
        message: pb.CompleteRequest,
        caller: Caller,
        began_at: float,
        *,
        context: Any = None,
    ) -> Request:
        """Return a message as a request, which begins now. Its receipt began at `began_at`.

        `context` is that of a call with this request alone: its deadline counts, and its trace goes before that of the
        message, as proxies change it.

        Raises:
            InvalidRequestError: a field is invalid.

        """
        left_s, headers = (None, {}) if context is None else (context.time_remaining(), metadata_of(context))
        traced = (message.traceparent, message.tracestate)
        if headers.get(TRACEPARENT):
            traced = (headers[TRACEPARENT], headers.get(TRACESTATE, ""))
        trace = self._begin_trace(*traced)
        return convert.request_of(
            message, caller, self.limits, left_s, self._now(), receive_began_at=began_at, trace=trace
        )
