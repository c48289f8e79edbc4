"""Admits calls and receives their messages. Refuses a call before its message is received or parsed if possible.

On the wire, a method with one request is a stream with one message. The services register such methods as streams, so
that a handler runs when the headers of its call arrive, and decides whether to receive the message.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from completion.v1 import completion_pb2 as pb
from completion_server.admission.callers import Callers
from completion_server.admission.identity import Identity
from completion_server.admission.settings import LimitSettings
from completion_server.admission.turns import ReceiveTurns
from completion_server.auth.principal import Scope
from completion_server.core.errors import DeadlineError, InvalidRequestError
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import BeginTrace, no_trace
from completion_server.rpc.identity import arrival_of, token_of
from completion_server.rpc.messages import convert, decoder
from completion_server.rpc.messages.decoder import Decoder, Malformed

M = TypeVar("M", bound=Message)


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
        self.refusals = callers.refusals
        self._begin_trace = begin_trace
        self._turns = ReceiveTurns()
        self._receive_timeout_s = receive_timeout_s
        self._now = now
        self.decode_complete = Decoder(pb.CompleteRequest, decoder.complete_request(limits))
        self.decode_session = Decoder(pb.SessionRequest, decoder.session_request(limits))
        self.decode_feedback = Decoder(pb.ReportFeedbackRequest, decoder.report_feedback_request(limits))

    async def enter(self, context: Any, scope: Scope = Scope.COMPLETE) -> Identity:
        """Return the caller of a call, who may do what `scope` names.

        Raises:
            CompletionError: as `Callers.identify`.

        """
        return await self.callers.identify(arrival_of(context, with_credentials=not self.callers.is_open), scope)

    async def enter_again(self, context: Any, authorization: str) -> Identity:
        """Return the caller of an open stream by a new token, in the form of the metadata `authorization`.

        Raises:
            CompletionError: as `Callers.identify`.

        """
        arrival = arrival_of(context)
        credentials = replace(arrival.credentials, token=token_of(authorization))
        return await self.callers.identify(replace(arrival, credentials=credentials))

    async def receive(self, context: Any, identity: Identity) -> bytes:
        """Return the one message of a call.

        Raises:
            DeadlineError: the message was not received in time.
            InvalidRequestError: the call has no message, or the transport refused it.

        """
        try:
            return await self._receive(context, identity)
        except DeadlineError:
            self.refusals.charge(identity, self.limits.max_message_bytes)  # as much memory may have been held
            raise
        except InvalidRequestError:
            self.refusals.charge(identity, 0)
            raise

    async def _receive(self, context: Any, identity: Identity) -> bytes:
        try:
            data = await self._turns.take(identity, context.read, self._receive_timeout_s)
        except TimeoutError:
            msg = f"the request was not received within {self._receive_timeout_s:g} s (server.receive_timeout_s)"
            raise DeadlineError(msg) from None
        if data is grpc.aio.EOF:
            raise InvalidRequestError("message", "must be sent, but the call ended without one")
        received: bytes = data
        return received

    def request_of(
        self,
        message: pb.CompleteRequest,
        caller: Caller,
        began_at: float,
        *,
        left_s: float | None = None,
        trace_headers: tuple[str, str] = ("", ""),
    ) -> Request:
        """Return a message as a request, which begins now. Its receipt began at `began_at`.

        `left_s` is the time that its call has left. `trace_headers` go before the message: proxies change them.

        Raises:
            InvalidRequestError: a field is invalid.

        """
        traceparent, tracestate = trace_headers if trace_headers[0] else (message.traceparent, message.tracestate)
        trace = self._begin_trace(traceparent, tracestate)
        return convert.request_of(
            message, caller, self.limits, left_s, self._now(), receive_began_at=began_at, trace=trace
        )


def parsed(message: M | Malformed) -> M:
    """Return the message.

    Raises:
        InvalidRequestError: it is malformed.

    """
    if isinstance(message, Malformed):
        raise message.error
    return message
