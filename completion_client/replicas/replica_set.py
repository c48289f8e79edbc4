"""Several replicas as one server, for editors that connect to them directly: a user's requests go to one replica."""

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from completion.v1 import completion_pb2 as pb
from completion_client.client import collect
from completion_client.completion import Completion
from completion_client.endpoint import Endpoint, Metadata, caller_metadata
from completion_client.regions.choice import EndpointOrder, RoutingSettings, UserChoice, rendezvous_order
from completion_client.regions.regions import Regions
from completion_client.replicas.attempts import Attempts
from completion_client.replicas.stream import ReplicaStream
from completion_client.replicas.view import OnMove, Replicas
from completion_client.request_fields import Numbering, make_session_id
from completion_client.session import Session
from completion_client.session_settings import SessionSettings, StreamListener

CONNECT_TIMEOUT_S = 2.0
"""Shorter than that of a client with one server: another replica can be asked."""


class ReplicaSet:
    """Asks several replicas for completions of one user. Use it in one event loop, as an asynchronous context manager.

    All requests and sessions go to the first replica in the user's order: of the nearest region the one that the user's
    hash chooses. One that refuses, drains, can't be reached, sends nothing or is overloaded is passed over for a while,
    in favour of the next.
    """

    def __init__(
        self,
        endpoints: Regions | Iterable[Endpoint] | str,
        *,
        user: str | None = None,
        tenant: str | None = None,
        connection: int | None = None,
        settings: RoutingSettings | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        order: EndpointOrder = rendezvous_order,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask the replicas at `endpoints`, such as "a:1,b:2,c:3", for `user` of `tenant`.

        A process with many users makes one `Regions` and gives it to the `ReplicaSet` of each, and closes that when the
        user leaves. A few dozen users share a connection to each endpoint; `connection` is the number of another one.
        Without a user, the order is that of this object's own session. `now` is a monotonic clock in seconds, if
        `endpoints` is no Regions.

        Raises:
            EndpointError: there is no endpoint, one is there twice, or a name has characters that can't be sent.

        """
        self._owns_regions = not isinstance(endpoints, Regions)
        self.regions = endpoints if isinstance(endpoints, Regions) else Regions(endpoints, now=now)
        self._metadata = caller_metadata(user, tenant)
        self._numbering = Numbering()
        name = user or self._numbering.session_id
        choice = UserChoice(self.regions.distances, self.regions.availability, name, tenant or "", settings, order)
        self._lease = self.regions.lease(connection)
        self._replicas = Replicas(self.regions, choice, self._lease, connect_timeout_s)

    @property
    def order(self) -> Sequence[Endpoint]:
        """The replicas in the user's order of preference."""
        return self._replicas.choice.order

    @property
    def endpoint(self) -> Endpoint:
        """The replica to which a request goes now."""
        return self._replicas.best()

    async def __aenter__(self) -> Self:
        """Begin to measure."""
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
        self._lease.release()
        if self._owns_regions:
            await self.regions.aclose()

    async def complete(
        self,
        request: pb.CompleteRequest,
        *,
        timeout_s: float | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> Completion:
        """Send one request and return its whole answer; see `CompletionClient.complete`.

        A replica that refuses, is lost or sends nothing before any text is passed over, and the next one is asked.
        `timeout_s` is for all of it. `Completion.address` is the replica that answered.

        Raises:
            ServiceError: the call or the request failed at every replica that was asked, or the timeout passed. A
                replica with a PEM file that can't be read counts as not reachable.

        """
        sent_s = time.monotonic()
        attempts = Attempts(self._replicas, self._numbering.numbered(request), timeout_s, self._metadata)
        await self.regions.ready(timeout_s)
        found = await collect(attempts.events(), sent_s, on_text)
        address = attempts.endpoint.address if attempts.endpoint else None
        completion = dataclasses.replace(found, address=address, num_sent=attempts.num_sent)
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

        Call `regions.ready()` before its `start_nowait`. `metadata` replaces that of the user.
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
        """Open a session for an editor's life; see `CompletionClient.session`.

        Each request goes to the best replica of the moment. Requests that have no text when their replica is lost or
        refuses are sent to the next; `on_move` gets each change.

        Raises:
            ConnectionLostError: there is no connection to any replica, or their PEM files can't be read.

        """
        await self.regions.ready()
        await self._replicas.first_connected()
        stream = self.stream(settings=settings, listener=listener, on_move=on_move)
        stream.start_nowait()
        session = Session(stream, session_id or make_session_id())
        try:
            yield session
        finally:
            await session.aclose()
