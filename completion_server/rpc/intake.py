"""Admits calls and receives their messages. Refuses a call before its message is received or parsed if possible.

On the wire, a method with one request is a stream with one message. The services register such methods as streams, so
that a handler runs when the headers of its call arrive, and decides whether to receive the message.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from completion.v1 import completion_pb2 as pb
from completion_server.admission.identity import Identity
from completion_server.admission.quotas import RefusalBudget
from completion_server.admission.refusals import MAX_HOLD_S, Refusals
from completion_server.admission.settings import LimitSettings
from completion_server.admission.turns import ReceiveTurns
from completion_server.core.errors import DeadlineError, InvalidRequestError
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import BeginTrace, no_trace
from completion_server.rpc.identity import Identify
from completion_server.rpc.messages import convert, decoder
from completion_server.rpc.messages.decoder import Decoder, Malformed

M = TypeVar("M", bound=Message)


class Intake:
    """Receives the calls of one listener."""

    def __init__(
        self,
        limits: LimitSettings,
        budget: RefusalBudget,
        peer_budget: RefusalBudget,
        receive_timeout_s: float,
        now: Callable[[], float],
        identify: Identify,
        begin_trace: BeginTrace = no_trace,
    ) -> None:
        """Receive messages within `limits`, each in `receive_timeout_s`, and charge refused ones to both budgets.

        `budget` is for each connection, `peer_budget` for each address, because a client can replace its connection.
        """
        self.limits = limits
        self._begin_trace = begin_trace
        self._identify = identify
        self.refusals = Refusals(budget, peer_budget, now)
        self._turns = ReceiveTurns()
        self._receive_timeout_s = receive_timeout_s
        self._now = now
        self.decode_complete = Decoder(pb.CompleteRequest, decoder.complete_request(limits))
        self.decode_session = Decoder(pb.SessionRequest, decoder.session_request(limits))
        self.decode_feedback = Decoder(pb.ReportFeedbackRequest, decoder.report_feedback_request(limits))

    async def enter(self, context: Any) -> Identity:
        """Return the caller.

        Raises:
            TooManyRefusalsError: the connection or its address is over its budget.
            InvalidRequestError: a name in the metadata is too long.

        """
        identity = self._identify(context)
        error = self.refusals.over_budget(identity)
        if error is not None:
            await asyncio.sleep(min(MAX_HOLD_S, (error.retry_after_ms or 0) / 1000))
            raise error
        return identity

    async def receive(self, context: Any, identity: Identity) -> bytes:
        """Return the one message of a call.

        Raises:
            DeadlineError: the message was not received in time.
            InvalidRequestError: the call has no message, or the transport refused it.

        """
        try:
            async with self._turns.of(identity):
                return await self._receive(context)
        except DeadlineError:
            self.refusals.charge(identity, self.limits.max_message_bytes)  # as much memory may have been held
            raise
        except InvalidRequestError:
            self.refusals.charge(identity, 0)
            raise

    async def _receive(self, context: Any) -> bytes:
        try:
            async with asyncio.timeout(self._receive_timeout_s):
                data = await context.read()
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
