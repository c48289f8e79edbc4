"""Admits calls and receives their messages. Refuses a call before its message is received or parsed if possible.

On the wire, a method with one request is a stream with one message. The services register such methods as streams, so
that a handler runs when the headers of its call arrive, and decides whether to receive the message.
"""

import asyncio
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import grpc

from completion.v1 import completion_pb2 as pb
from completion_server.api.callers import API_KEY, AUTHORIZATION, TENANT, USER, Callers
from completion_server.api.rpc import convert
from completion_server.api.rpc.decoder import Decoder
from completion_server.core.addresses import peer_key
from completion_server.core.credential import Scope
from completion_server.core.errors import DeadlineError, InvalidRequestError
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE, BeginTrace, no_trace
from completion_server.requests.limits.settings import LimitSettings

_MAX_RECEIVING = 1024
"""Calls whose messages are received at the same time. Each may hold nearly a whole message, for
`ServerSettings.receive_timeout_s`: callers who hold back the last byte would fill the memory. A message takes
milliseconds, so the one that has taken longest ends for another one."""


_KEYS = frozenset((USER, TENANT, TRACEPARENT, TRACESTATE, AUTHORIZATION, API_KEY))
_CERTIFICATE = "x509_pem_cert"
_MAX_PEERS = 4096
"""Connections whose keys are kept, because many calls come on each."""


def metadata_of(context: Any) -> dict[str, str]:
    """Return the metadata of a call that the server reads."""
    return {
        key: value if isinstance(value, str) else value.decode("ascii", "replace")
        for key, value in context.invocation_metadata() or ()
        if key in _KEYS
    }


async def identify(callers: Callers, context: Any, scope: Scope = Scope.COMPLETE, authorization: str = "") -> Caller:
    """Return the caller of a call, who may do what `scope` names; `authorization` is newer than that of the call.

    Raises CompletionError: as `Callers.identify`.
    """
    connection, peer = split_peer(context.peer())
    metadata = metadata_of(context) | ({AUTHORIZATION: authorization} if authorization else {})
    # While authentication is off, no certificate is read, which saves time.
    certificate = b"" if callers.is_open else b"".join(context.auth_context().get(_CERTIFICATE, ()))
    return await callers.identify(metadata, connection, peer, certificate, scope)


@lru_cache(_MAX_PEERS)
def split_peer(peer: str) -> tuple[str, str]:
    """Return the keys of a connection and of its address from gRPC's name of the peer, such as "ipv4:10.0.0.7:50312".

    Both are "" on a Unix socket.
    """
    scheme, _, connection = peer.partition(":")
    host = connection.rpartition(":")[0]
    if scheme not in ("ipv4", "ipv6"):
        return "", ""
    return connection, peer_key(unquote(host).strip("[]"))


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
            bound = f"within {self._receive_timeout_s:g} s"
            if turn not in self._receiving:
                bound = f"before {_MAX_RECEIVING} others came"
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

    def request_of(self, message: pb.CompleteRequest, caller: Caller, began_at: float, context: Any = None) -> Request:
        """Return a message as a request, which begins now. Its receipt began at `began_at`.

        `context` is that of a call with this request alone: its deadline counts, and its trace goes before that of the
        message, as proxies change it. Raises InvalidRequestError: a field is invalid.
        """
        left_s, headers = (None, {}) if context is None else (context.time_remaining(), metadata_of(context))
        traced = (message.traceparent, message.tracestate)
        if headers.get(TRACEPARENT):
            traced = (headers[TRACEPARENT], headers.get(TRACESTATE, ""))
        deadline_s = math.inf if left_s is None else left_s
        trace = self._begin_trace(*traced)
        return convert.request_of(message, caller, self.limits, deadline_s, self._now(), began_at, trace)
