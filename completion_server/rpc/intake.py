"""Lets calls in and receives their messages. Refuses what it can before it is received, or at least before parsing.

On the wire, a method with one request is a stream with one message. The services register such methods as streams, so
that a handler runs when the headers of its call arrive, and decides whether to receive the message at all.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import grpc
from google.protobuf.message import Message

from completion.v1 import completion_pb2 as pb
from completion_server.admission.refusals import RefusalBudget
from completion_server.core.errors import InvalidRequestError, TooManyRefusalsError
from completion_server.rpc.identity import Identify, Identity
from completion_server.rpc.messages import scan
from completion_server.rpc.messages.decoder import Decoder, Malformed
from completion_server.rpc.settings import LimitSettings
from completion_server.rpc.status import DeadlineError

M = TypeVar("M", bound=Message)

_MAX_RECEIVING = 128
"""Calls of one address that are received at once; each may hold nearly a whole message. Further ones wait."""
_MAX_HOLD_S = 1.0
"""How long a call of a connection over its budget waits for its refusal. The call counts against the streams of its
connection meanwhile, which slows down a client that calls again at once."""


class Intake:
    """Belongs to all calls of one listener."""

    def __init__(
        self,
        limits: LimitSettings,
        budget: RefusalBudget,
        peer_budget: RefusalBudget,
        receive_timeout_s: float,
        now: Callable[[], float],
        identify: Identify,
    ) -> None:
        """Receive messages within `limits`, each in `receive_timeout_s`, and charge refused ones to both budgets.

        `budget` is that of each connection, `peer_budget` that of each address: a connection is easily replaced.
        """
        self.limits = limits
        self._identify = identify
        self._budget = budget
        self._peer_budget = peer_budget
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """For each address that calls now: which calls are being received. The others hold little meanwhile."""
        self._receive_timeout_s = receive_timeout_s
        self._now = now
        self.decode_complete = Decoder(pb.CompleteRequest, scan.complete_request(limits))
        self.decode_session = Decoder(pb.SessionRequest, scan.session_request(limits))
        self.decode_feedback = Decoder(pb.ReportFeedbackRequest, scan.report_feedback_request(limits))

    async def enter(self, context: Any) -> Identity:
        """Return who calls.

        Raises:
            TooManyRefusalsError: the connection is over its budget.
            InvalidRequestError: a name in the metadata is too long.

        """
        identity = self._identify(context)
        error = self.over_budget(identity)
        if error is not None:
            await asyncio.sleep(min(_MAX_HOLD_S, (error.retry_after_ms or 0) / 1000))
            raise error
        return identity

    async def receive(self, context: Any, identity: Identity) -> bytes:
        """Return the one message of a call.

        Raises:
            DeadlineError: it did not come in time.
            InvalidRequestError: the call has none, or one that the transport refused.

        """
        if not identity.peer or identity.is_verified:
            return await self._receive(context, identity)
        turns = self._turns.get(identity.peer)
        if turns is None:
            turns = self._turns[identity.peer] = asyncio.Semaphore(_MAX_RECEIVING)
        async with turns:
            return await self._receive(context, identity)

    async def _receive(self, context: Any, identity: Identity) -> bytes:
        try:
            async with asyncio.timeout(self._receive_timeout_s):
                data = await context.read()
        except TimeoutError:
            self.charge(identity, self.limits.max_message_bytes)  # that much may have been held
            msg = f"the request was not received within {self._receive_timeout_s:g} s (server.receive_timeout_s)"
            raise DeadlineError(msg) from None
        if data is grpc.aio.EOF:
            self.charge(identity, 0)
            raise InvalidRequestError("message", "must be sent, but the call ended without one")
        received: bytes = data
        return received

    def charge(self, identity: Identity, num_bytes: int) -> None:
        """Take a refusal into account. On a Unix socket connections can't be told apart, so none is charged."""
        now = self._now()
        if identity.source:
            self._budget.charge(identity.source, num_bytes, now)
        if identity.peer and not identity.is_verified:
            self._peer_budget.charge(identity.peer, num_bytes, now)

    def over_budget(self, identity: Identity) -> TooManyRefusalsError | None:
        """Return why nothing is received from a connection, if so."""
        now = self._now()
        wait_s = max(self._budget.wait_s(identity.source, now), self._peer_budget.wait_s(identity.peer, now))
        if not wait_s:
            return None
        msg = "too much of what came from here was refused (admission.refused_bytes_per_s)"
        return TooManyRefusalsError(msg, retry_after_ms=math.ceil(wait_s * 1000))

    @contextmanager
    def charging(self, identity: Identity, num_bytes: int) -> Iterator[None]:
        """Charge a message of so many bytes if it is refused inside the `with` block."""
        try:
            yield
        except InvalidRequestError:
            self.charge(identity, num_bytes)
            raise


def parsed(message: M | Malformed) -> M:
    """Return a message that could be parsed.

    Raises:
        InvalidRequestError: it could not.

    """
    if isinstance(message, Malformed):
        raise message.error
    return message
