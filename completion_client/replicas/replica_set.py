"""Several replicas as one server, for editors that connect to them directly: a user's requests go to one replica."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from completion.v1 import completion_pb2 as pb
from completion_client.calls import Numbering, complete, make_session_id
from completion_client.channel_pool import ChannelPool
from completion_client.completion import Completion
from completion_client.endpoint import Endpoint, caller_metadata
from completion_client.errors import ConnectionLostError, DeadlineExceededError, ServiceError
from completion_client.replicas.stream import ReplicaChannel, Replicas, ReplicaStream
from completion_client.routing import Preference, RoutingSettings, parse_endpoints, rendezvous_order
from completion_client.session import Session
from completion_client.session_stream import SessionSettings, StreamListener

CONNECT_TIMEOUT_S = 2.0
"""Shorter than that of a client with one server: another replica can be asked."""

Order = Callable[[Iterable[Endpoint], str, str], Sequence[Endpoint]]
"""Returns the replicas of a user and a tenant in the order of preference."""


class ReplicaSet:
    """Asks several replicas for completions of one user. Use it in one event loop, as an asynchronous context manager.

    All requests and sessions go to the first replica in the user's order. One that refuses, drains, can't be reached or
    is overloaded is passed over for a while, in favour of the next.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint] | str,
        *,
        user: str | None = None,
        tenant: str | None = None,
        settings: RoutingSettings | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        order: Order = rendezvous_order,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask the replicas at `endpoints`, such as "a:1,b:2,c:3", for `user` of `tenant`.

        Without a user, the order is that of this object's own session. `now` is a monotonic clock in seconds.

        Raises:
            EndpointError: there is no endpoint, one is there twice, or a name has characters that can't be sent.

        """
        found = parse_endpoints(endpoints) if isinstance(endpoints, str) else tuple(endpoints)
        self._metadata = caller_metadata(user, tenant)
        self._numbering = Numbering()
        self._pool = ChannelPool(connect_timeout_s)
        ordered = order(found, user or self._numbering.session_id, tenant or "")
        self._preference = Preference(ordered, settings or RoutingSettings())
        self._replicas = Replicas(self._pool, self._preference, connect_timeout_s, now)

    @property
    def order(self) -> Sequence[Endpoint]:
        """The replicas in the user's order of preference."""
        return self._preference.order

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; open requests fail."""
        self._pool.close()

    async def complete(
        self,
        request: pb.CompleteRequest,
        *,
        timeout_s: float | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> Completion:
        """Send one request and return its whole answer; see `CompletionClient.complete`.

        A replica that refuses before any text is passed over, and the next one is asked. `timeout_s` is for all of it.

        Raises:
            ServiceError: the call or the request failed at every replica that was asked, or the timeout passed.
            EndpointError: a PEM file of an endpoint can't be read.

        """
        message = self._numbering.numbered(request)
        ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s
        failure: ServiceError = ConnectionLostError("no replica")
        shed: Completion | None = None
        for endpoint in self._replicas.candidates():
            attempt = _Attempt(on_text)
            left_s = None if ends_at_s is None else ends_at_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise DeadlineExceededError("the deadline passed first") from failure
            try:
                channel = await self._replicas.connected(endpoint, left_s)
                completion = await complete(
                    channel, message, timeout_s=left_s, metadata=self._metadata, on_text=attempt.add
                )
            except ServiceError as error:
                if not self._replicas.note_error(endpoint, error) or attempt.has_text:
                    raise
                failure = error
                continue
            if completion.end is None or not self._replicas.note_end(endpoint, completion.end):
                return completion
            shed = completion
        if shed is not None:
            return shed
        raise failure

    @asynccontextmanager
    async def session(
        self,
        session_id: str | None = None,
        *,
        settings: SessionSettings | None = None,
        listener: StreamListener | None = None,
    ) -> AsyncIterator[Session]:
        """Open a session for an editor's life; see `CompletionClient.session`.

        A stream that is lost or refused opens again at the next replica. It returns to the user's first replica when it
        is opened the next time, at the latest at the server's age limit for streams.

        Raises:
            ConnectionLostError: there is no connection to any replica.
            EndpointError: a PEM file of an endpoint can't be read.

        """
        channel = ReplicaChannel(self._replicas)
        await channel.ready()
        stream = ReplicaStream(self._replicas, channel, metadata=self._metadata, settings=settings, listener=listener)
        stream.start_nowait()
        session = Session(stream, session_id or make_session_id())
        try:
            yield session
        finally:
            await session.aclose()


class _Attempt:
    """Notes whether a call brought text."""

    def __init__(self, on_text: Callable[[str], object] | None) -> None:
        self._on_text = on_text
        self.has_text = False

    def add(self, text: str) -> None:
        self.has_text = True
        if self._on_text is not None:
            self._on_text(text)
