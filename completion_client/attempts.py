"""One request as a call to one server after another, until one answers."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.connections import Connection
from completion_client.endpoint import Endpoint, Metadata, with_token
from completion_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    ServiceError,
    UnauthenticatedError,
    UnavailableError,
    error_of_call,
)
from completion_client.replicas import Replicas
from completion_client.request_fields import trace_metadata
from completion_client.silence import SilenceError, SilenceGuard
from completion_client.tokens import Token

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

    Call = grpc.aio.UnaryStreamCall[pb.CompleteRequest, pb.CompleteResponse]

_CLOSES_S = 0.2
"""How much later than a failed call its connection may be seen to close."""

Events = AsyncGenerator[pb.CompleteResponse, None]


class Attempts:
    """The attempts at one request. Each has what the ones before left of the time, and ends before the next begins."""

    def __init__(
        self, replicas: Replicas, request: pb.CompleteRequest, timeout_s: float | None, metadata: Metadata
    ) -> None:
        """Send `request` within `timeout_s` for all attempts together."""
        self._replicas = replicas
        self._request = request
        self._ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._metadata = (*metadata, *trace_metadata(request))
        self._failures: dict[Endpoint, ServiceError] = {}
        self._refusal: tuple[Endpoint, pb.CompleteResponse] | None = None
        self.endpoint: Endpoint | None = None
        """The server that was asked last, or whose refusal is the answer."""
        self.num_sent = 0
        """To how many servers the request was sent."""

    async def events(self) -> Events:
        """Yield the events of the answer, which is one server's alone. Leaving cancels the call.

        Raises:
            ServiceError: every server that was asked failed, or the time is over.

        """
        candidates = self._replicas.candidates()
        for endpoint in candidates:
            connection = await self._connected(endpoint, is_last=endpoint == candidates[-1])
            if connection is None:
                continue
            is_begun = False
            try:
                async with aclosing(self._call(connection)) as events:
                    async for event in events:
                        is_begun = True
                        yield event
            except ServiceError as error:
                if not self._replicas.note_error(connection, error) or is_begun:
                    raise
                self._failures[endpoint] = error
                candidates += await self._once_more(connection, error, candidates)
            if is_begun:
                return
        if self._refusal is None:
            self._left_s()
            raise self._failure()
        self.endpoint, event = self._refusal
        yield event

    async def _once_more(
        self, connection: Connection, error: ServiceError, candidates: list[Endpoint]
    ) -> list[Endpoint]:
        """Return the only endpoint if its connection was closed under a call: another server may be at the address.

        A server or proxy that turns a call away keeps the connection; asking again would add to its load.
        """
        if len(candidates) > 1 or error.retry_after_ms is not None:
            return []
        left_s = self._left_s()
        is_closed = await connection.closes_within(_CLOSES_S if left_s is None else min(_CLOSES_S, left_s))
        return candidates[:] if is_closed else []

    async def _connected(self, endpoint: Endpoint, *, is_last: bool) -> Connection | None:
        """Return the connection to a server, None if there is none; leave time for the others unless it is the last."""
        limit_s = self._left_s()
        self.endpoint = endpoint
        try:
            if not is_last:
                share_s = self._replicas.silence_s(self._replicas.connection(endpoint), limit_s)
                limit_s = min((each for each in (share_s, limit_s) if each is not None), default=None)
            return await self._replicas.connected(endpoint, limit_s)
        except ConnectionLostError as error:
            self._failures[endpoint] = error
            return None

    async def _call(self, connection: Connection) -> Events:
        """Yield the events of one server's answer; none if it refuses and another may do better.

        A token that is refused is fetched anew and presented again, once.

        Raises:
            ServiceError: the call failed, there is no token, or the server sends nothing.

        """
        token = self._replicas.token(connection.endpoint)
        for is_last in (False, True):
            presented = await self._presented(token)
            is_begun = False
            try:
                async with aclosing(self._call_with(connection, presented)) as events:
                    async for event in events:
                        if not is_begun:
                            token.accepted(presented)
                        is_begun = True
                        yield event
            except UnauthenticatedError as error:
                if not token.is_given:
                    raise
                token.refused(presented, error)
                if is_begun or is_last:
                    raise token.refusal(error) from error
            else:
                return

    async def _presented(self, token: Token) -> str:
        """Return the token, if it is fetched within the time that is left."""
        left_s = self._left_s()
        try:
            async with asyncio.timeout(left_s):
                return await token.get()
        except TimeoutError:
            msg = f"the deadline passed before there was a token: {token.where} takes long"
            raise DeadlineExceededError(msg) from None

    async def _call_with(self, connection: Connection, presented: str) -> Events:
        left_s = self._left_s()
        stub: CompletionServiceAsyncStub = CompletionServiceStub(connection.channel)
        self.num_sent += 1
        sent_at_s = time.monotonic()
        call = stub.Complete(self._request, timeout=left_s, metadata=with_token(self._metadata, presented))
        watched = _WatchedCall(self._replicas, connection, call, left_s)
        is_begun = False
        try:
            async for event in call:
                watched.heard()
                if event.HasField("end"):
                    may_retry = self._replicas.note_end(connection, event.end, time.monotonic() - sent_at_s)
                    if may_retry and not is_begun and not event.end.text:
                        self._refusal = connection.endpoint, event
                        return
                is_begun = True
                yield event
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error
        except asyncio.CancelledError:
            # gRPC raises it for a cancelled call, too. Only the cancellation of this task is passed on.
            task = asyncio.current_task()
            if watched.error is None or (task is not None and task.cancelling()):
                raise
            raise watched.error from None
        finally:
            watched.stop()
            call.cancel()

    def _left_s(self) -> float | None:
        """Return the time that is left; None without a limit. Raises DeadlineExceededError if none is left."""
        if self._ends_at_s is None:
            return None
        left_s = self._ends_at_s - time.monotonic()
        if left_s <= 0:
            reasons = self._reasons()
            if self._refusal is not None:
                endpoint, event = self._refusal
                reasons.append(f"{endpoint.address}: {event.end.error.message or 'it drains'}")
            raise DeadlineExceededError("; ".join(("the deadline passed first", *reasons)))
        return left_s

    def _reasons(self) -> list[str]:
        return [f"{endpoint.address}: {error.message}" for endpoint, error in self._failures.items()]

    def _failure(self) -> ServiceError:
        """Return the failures of all servers as one error."""
        failures = list(self._failures.values())
        said = [each for each in failures if not isinstance(each, UnavailableError)]
        if said or len(failures) == 1:
            return (said or failures)[-1]
        is_lost = all(isinstance(each, ConnectionLostError) for each in failures)
        waits_ms = [each.retry_after_ms for each in failures if each.retry_after_ms is not None]
        return (ConnectionLostError if is_lost else UnavailableError)(
            f"no server answers: {'; '.join(self._reasons())}", retry_after_ms=min(waits_ms, default=None)
        )


class _WatchedCall:
    """Cancels a call whose server sends nothing any more: at once if nothing has come, else when its time is over."""

    def __init__(self, replicas: Replicas, connection: Connection, call: "Call", left_s: float | None) -> None:
        self.error: ConnectionLostError | None = None
        """Set if the server was silent."""
        self._replicas = replicas
        self._connection = connection
        self._call: Call | None = call
        self._loop = asyncio.get_running_loop()
        self._ends_at_s = None if left_s is None else self._loop.time() + left_s
        self._is_begun = False
        self._guard = SilenceGuard(partial(replicas.regions.alive_at_s, connection), self._on_silent, self._give_up)
        limit_s = replicas.silence_s(connection, left_s)
        if limit_s is not None:
            self._guard.expect_nowait(limit_s)

    def heard(self) -> None:
        self._is_begun = True
        self._guard.heard_nowait()
        self._connection.heard_at_s = self._loop.time()

    def stop(self) -> None:
        self._guard.stop_nowait()
        self._call = None  # breaks a reference cycle: the channel closes with its last call

    def _on_silent(self) -> float:
        self._replicas.note_silence(self._connection)
        if not self._is_begun:
            return self._loop.time()
        ends_at_s = self._loop.time() if self._ends_at_s is None else self._ends_at_s
        return ends_at_s + self._replicas.regions.settings.silence_max_s

    def _give_up(self, silence_s: float) -> None:
        self.error = SilenceError.of(self._connection.endpoint.address, silence_s)
        if self._call is not None:
            self._call.cancel()
