"""One request as a call to one server after another, until one answers."""

import asyncio
import time
from collections import deque
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
        self._refused: set[Endpoint] = set()
        """Those that refused the token."""
        self._refusal: tuple[Endpoint, pb.CompleteResponse] | None = None
        self.endpoint: Endpoint | None = None
        """The server that was asked last, or whose refusal is the answer."""
        self.num_sent = 0
        """To how many servers the request was sent."""

    async def events(self) -> Events:
        """Yield the events of the answer, which is one server's alone. Leaving cancels the call.

        A token that is refused is fetched anew and presented again, once. Raises ServiceError if every server that was
        asked failed, or the time is over.
        """
        remaining = deque(self._replicas.candidates())
        while remaining:
            endpoint = remaining.popleft()
            connection = await self._connected(endpoint, is_last=not remaining)
            if connection is None:
                continue
            presented = await self._presented(self._replicas.token(endpoint))
            is_begun = False
            try:
                async with aclosing(self._call(connection, presented)) as events:
                    async for event in events:
                        is_begun = True
                        yield event
            except ServiceError as error:
                if await self._is_repeated(connection, presented, error, is_begun):
                    remaining.appendleft(endpoint)
            if is_begun:
                return
        if self._refusal is None:
            self._left_s()
            raise self._failure()
        self.endpoint, event = self._refusal
        yield event

    async def _is_repeated(self, connection: Connection, presented: str, error: ServiceError, is_begun: bool) -> bool:
        """Note a failed call; return whether its server is asked again, once. Raises the error if no server is asked.

        The only server is asked again if its connection was closed under the call: another may be at the address. A
        server or proxy that turns a call away keeps the connection; asking again would add to its load.
        """
        endpoint, token = connection.endpoint, self._replicas.token(connection.endpoint)
        if token.is_given and isinstance(error, UnauthenticatedError):
            token.refused(presented, error)
            if is_begun or endpoint in self._refused:
                raise token.refusal(error) from error
            self._refused.add(endpoint)
            return True
        if not self._replicas.note_error(connection, error) or is_begun:
            raise error
        is_first = endpoint not in self._failures
        self._failures[endpoint] = error
        if self._replicas.has_choice or not is_first or error.retry_after_ms is not None:
            return False
        left_s = self._left_s()
        return await connection.closes_within(_CLOSES_S if left_s is None else min(_CLOSES_S, left_s))

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

    async def _presented(self, token: Token) -> str:
        """Return the token, if it is fetched within the time that is left."""
        try:
            async with asyncio.timeout(self._left_s()):
                return await token.get()
        except TimeoutError:
            msg = f"the deadline passed before there was a token: {token.where} takes long"
            raise DeadlineExceededError(msg) from None

    async def _call(self, connection: Connection, presented: str) -> Events:
        """Yield the events of one server's answer; none if it refuses and another may do better.

        A server that sends nothing is given up: at once if nothing has come, else when the time is over. Raises
        ServiceError: the call failed, or the server sends nothing.
        """
        left_s, sent_at_s, is_begun = self._left_s(), time.monotonic(), False
        stub: CompletionServiceAsyncStub = CompletionServiceStub(connection.channel)
        call = stub.Complete(self._request, timeout=left_s, metadata=with_token(self._metadata, presented))
        self.num_sent += 1
        guard = _CallGuard(self._replicas, connection, call, left_s)
        try:
            async for event in call:
                guard.heard_nowait()
                if event.HasField("end"):
                    may_retry = self._replicas.note_end(connection, event.end, time.monotonic() - sent_at_s)
                    if may_retry and not is_begun and not event.end.text:
                        self._refusal = connection.endpoint, event
                        return
                if not is_begun:
                    self._replicas.token(connection.endpoint).accepted(presented)
                is_begun = True
                yield event
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error
        except asyncio.CancelledError:
            # gRPC raises it for a cancelled call, too. Only the cancellation of this task is passed on.
            task = asyncio.current_task()
            if guard.error is None or (task is not None and task.cancelling()):
                raise
            raise guard.error from None
        finally:
            guard.stop_nowait()
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


class _CallGuard(SilenceGuard):
    """Cancels a call whose server sends nothing any more: at once if nothing has come, else when its time is over."""

    def __init__(self, replicas: Replicas, connection: Connection, call: "Call", left_s: float | None) -> None:
        alive_at_s = partial(replicas.regions.alive_at_s, connection)
        super().__init__(alive_at_s, self._note_silent, self._cancel)
        self.error: SilenceError | None = None
        """Set if the server was silent."""
        self._replicas = replicas
        self._connection = connection
        self._call: Call | None = call
        self._is_begun = False
        self._ends_at_s = None if left_s is None else self.now() + left_s
        if (limit_s := replicas.silence_s(connection, left_s)) is not None:
            self.expect_nowait(limit_s)

    def heard_nowait(self) -> None:
        super().heard_nowait()
        self._is_begun = True
        self._connection.heard_at_s = self.now()

    def stop_nowait(self) -> None:
        super().stop_nowait()
        self._call = None  # breaks a reference cycle: the channel closes with its last call

    def _note_silent(self) -> float:
        self._replicas.pass_over(self._connection.endpoint, "it sends nothing")
        if not self._is_begun:
            return self.now()
        return (self._ends_at_s or self.now()) + self._replicas.regions.settings.silence_max_s

    def _cancel(self, silence_s: float) -> None:
        self.error = SilenceError.of(self._connection.endpoint.address, silence_s)
        if self._call is not None:
            self._call.cancel()
