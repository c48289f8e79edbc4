"""The entry point of the library: one user's single requests and sessions, at one server or several."""

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Self

from completion.v1 import completion_pb2 as pb
from completion_client.attempts import Attempts
from completion_client.completion import Completion, CompletionBuilder
from completion_client.endpoint import Endpoint, Metadata, caller_metadata
from completion_client.regions import Regions
from completion_client.replicas import EndpointOrder, OnMove, Replicas, rendezvous_order
from completion_client.request_fields import Numbering
from completion_client.session import Session
from completion_client.session_settings import SessionSettings, StreamListener
from completion_client.stream import ReplicaStream
from completion_client.tokens import Token

_CONNECT_TIMEOUT_S = 10.0
"""To the only server."""
_CONNECT_TIMEOUT_OF_SEVERAL_S = 2.0
"""To one of several: another can be asked."""


class CompletionClient:
    """Asks one server, or one of several, for completions of one user. Use it in one event loop, as a context manager.

    All requests and sessions share one connection to each server, which is opened when it is first needed. With several
    servers they go to the first one in the user's order: of the nearest region the one that the user's hash chooses.
    One that refuses, drains, can't be reached, sends nothing or is overloaded is passed over for a while, in favour of
    the next.
    """

    def __init__(
        self,
        endpoints: Regions | Endpoint | Iterable[Endpoint] | str,
        *,
        user: str | None = None,
        tenant: str | None = None,
        token: Token | None = None,
        connection: int | None = None,
        connect_timeout_s: float | None = None,
        order: EndpointOrder = rendezvous_order,
    ) -> None:
        """Ask the server at `endpoints`, such as "a:1", or one of several, "a:1,b:2", for `user` of `tenant`.

        The server keeps one live request per user, and tells users apart by tenant and name. Without a user, the order
        of several servers is that of this object's own session.

        `token` is what the user presents to servers that want to know it, in place of that of an `Endpoint`.

        A process with many users makes one `Regions` and gives it to the client of each, and closes that when the user
        leaves. A few dozen users share a connection to each endpoint; `connection` is the number of another one.
        `connect_timeout_s` is 10 s for the only server, 2 s for one of several. Raises EndpointError if there is no
        endpoint, one is there twice, a name has characters that can't be sent, or the token would leave this machine in
        plain text.
        """
        self._metadata = caller_metadata(user, tenant)
        self._numbering = Numbering()
        self._owns_regions = not isinstance(endpoints, Regions)
        self.regions = endpoints if isinstance(endpoints, Regions) else Regions(endpoints)
        if token is not None:
            for each in self.regions.endpoints:
                each.check_token(token)
        name = user or self._numbering.session_id
        if connect_timeout_s is None:
            is_only = len(self.regions.endpoints) == 1
            connect_timeout_s = _CONNECT_TIMEOUT_S if is_only else _CONNECT_TIMEOUT_OF_SEVERAL_S
        self._replicas = Replicas(
            self.regions, name, tenant or "",
            order=order, number=connection, connect_timeout_s=connect_timeout_s, token=token,
        )  # fmt: skip

    @property
    def order(self) -> Sequence[Endpoint]:
        """The servers in the user's order of preference."""
        return self._replicas.order

    @property
    def endpoint(self) -> Endpoint:
        """The server to which a request goes now."""
        return self._replicas.best()

    async def __aenter__(self) -> Self:
        """Begin to measure several servers, and to look for new certificates."""
        self.regions.start_nowait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connections back; ignored if that was done. A call that is made later fails.

        The connections are dropped if no other user has them: with its own Regions always, with a shared one if this
        was the last user of their number. Open calls go on until they end, open sessions until their
        stream is lost.
        """
        self._replicas.release()
        if self._owns_regions:
            await self.regions.aclose()

    async def connect(self) -> None:
        """Connect to the best server that can be reached, so that the first request does not wait for it.

        Raises ConnectionLostError if none can be reached in time. A server with a PEM file that can't be read is not.
        """
        await self._replicas.ready()
        await self._replicas.first_connected()

    def reconnect_nowait(self) -> None:
        """Use new connections for new calls, as after a change of network. Connections that users share stay."""
        self._replicas.disconnect()

    def reorder(self, order: EndpointOrder) -> None:
        """Order the servers by another function from now on. Open requests stay where they are."""
        self._replicas.reorder(order)

    async def complete(
        self,
        request: pb.CompleteRequest,
        *,
        timeout_s: float | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> Completion:
        """Send one request and return its whole answer; `on_text` gets each piece of text as it arrives.

        Fills in `session_id` and `sequence` if they are not set. A request that ends as superseded, shed or cancelled
        has not failed: see `Completion.finish_reason`. Cancelling this coroutine cancels the request.

        A server that refuses, is lost or sends nothing before any text is passed over, and the next one is asked.
        `timeout_s` is for all of it. `Completion.address` is the server that answered. Raises ServiceError if the call
        or the request failed at every server that was asked, or the timeout passed.
        """
        builder = CompletionBuilder(time.monotonic())
        message = self._numbering.numbered(request)
        attempts = self.attempts(message, timeout_s=timeout_s)
        await self._replicas.ready(timeout_s)
        async with aclosing(attempts.events()) as events:
            async for event in events:
                text = builder.add(event, time.monotonic())
                if text and on_text is not None:
                    on_text(text)
        completion = dataclasses.replace(
            builder.build(time.monotonic()),
            address=attempts.endpoint.address if attempts.endpoint else None,
            num_sent=attempts.num_sent,
            sequence=message.sequence,
        )
        completion.raise_for_error()
        return completion

    def attempts(
        self, request: pb.CompleteRequest, *, timeout_s: float | None = None, metadata: Metadata | None = None
    ) -> Attempts:
        """Return the attempts at a request, for a caller that reads the events itself; see `Attempts.events`.

        The request needs its session and its number. `metadata` replaces that of the user.
        """
        return Attempts(self._replicas, request, timeout_s, self._metadata if metadata is None else metadata)

    def stream(
        self,
        *,
        metadata: Metadata | None = None,
        settings: SessionSettings | None = None,
        listener: StreamListener | None = None,
        on_move: OnMove | None = None,
    ) -> ReplicaStream:
        """Return the stream of a session, below `session`: for a caller that has many and closes them itself.

        Call `connect` or `regions.ready` before its `start_nowait`. `metadata` replaces that of the user.
        """
        sent = self._metadata if metadata is None else metadata
        return ReplicaStream(self._replicas, metadata=sent, settings=settings, listener=listener, on_move=on_move)

    @asynccontextmanager
    async def session(
        self,
        session_id: str | None = None,
        *,
        settings: SessionSettings | None = None,
        listener: StreamListener | None = None,
        on_move: OnMove | None = None,
    ) -> AsyncIterator[Session]:
        """Open a session for an editor's life; leaving the context ends it and fails its open requests.

        Each request goes to the best server of the moment. Requests that have no text when their server is lost or
        refuses are sent to the next, if there is one. `listener` gets the losses of the stream, for a display of the
        connection's state; `on_move` gets each change to another server. Raises ConnectionLostError if no server can be
        reached in time. A server with a PEM file that can't be read is not.
        """
        await self.connect()
        stream = self.stream(settings=settings, listener=listener, on_move=on_move)
        stream.start_nowait()
        session = Session(stream, session_id)
        try:
            yield session
        finally:
            await session.aclose()
