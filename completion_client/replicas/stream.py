"""A `Session` stream to one of several replicas, which moves to another when its replica refuses or drains."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from completion.v1 import completion_pb2 as pb
from completion_client.channel_pool import ChannelKey, ChannelPool
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import (
    ConnectionLostError,
    ResourceExhaustedError,
    ServiceError,
    UnavailableError,
)
from completion_client.routing import Preference
from completion_client.session_stream import RequestListener, SessionSettings, SessionStream, StreamListener

_SERVER_FULL, _OVERLOAD = "SERVER_FULL", "OVERLOAD"
_ANSWERED = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)


class Replicas:
    """The replicas of one user and the connections to them: notes what replicas say, and connects to the best one."""

    def __init__(
        self, pool: ChannelPool, preference: Preference, connect_timeout_s: float, now: Callable[[], float]
    ) -> None:
        """Connect through `pool`, each time within `connect_timeout_s`; `now` is a monotonic clock in seconds."""
        self.preference = preference
        self._pool = pool
        self._connect_timeout_s = connect_timeout_s
        self._now = now

    def candidates(self) -> list[Endpoint]:
        """Return the replicas in the order in which to try them now."""
        return self.preference.candidates(self._now())

    def is_best(self, endpoint: Endpoint) -> bool:
        """Return whether a new stream would go to this replica."""
        return self.preference.choose(self._now()) == endpoint

    def channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        """Return the channel to a replica, connected or not."""
        return self._pool.channel(ChannelKey(endpoint))

    async def connected(self, endpoint: Endpoint, within_s: float | None = None) -> grpc.aio.Channel:
        """Return the channel to a replica when it is connected, also within `within_s` if that is given.

        Raises:
            ConnectionLostError: the replica refuses the connection or takes too long. It is passed over then.
            EndpointError: a PEM file of the endpoint can't be read.

        """
        channel = self.channel(endpoint)
        timeout_s = self._connect_timeout_s if within_s is None else min(within_s, self._connect_timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                is_connected = await _connect(channel)
        except TimeoutError:
            is_connected = False
        if is_connected:
            return channel
        self._pool.disconnect(ChannelKey(endpoint))  # the next try begins anew, without gRPC's own back-off
        self.preference.refused(endpoint, self._now())
        msg = f"no connection to {endpoint.address}"
        raise ConnectionLostError(msg)

    def note_error(self, endpoint: Endpoint, error: ServiceError) -> bool:
        """Note the failure of a call or a stream; return whether another replica may do better."""
        retry_after_s = (error.retry_after_ms or 0) / 1000
        if isinstance(error, ResourceExhaustedError) and error.reason == _OVERLOAD:
            self.preference.overloaded(endpoint, self._now(), retry_after_s)
            return False
        is_full = isinstance(error, ResourceExhaustedError) and error.reason == _SERVER_FULL
        if is_full or isinstance(error, UnavailableError):
            self.preference.refused(endpoint, self._now(), retry_after_s)
            return True
        return False

    def note_end(self, endpoint: Endpoint, end: pb.End) -> bool:
        """Note how a request ended; return whether another replica may do better."""
        retry_after_s = end.retry_after_ms / 1000
        if end.shed_reason == pb.SHED_REASON_DRAINING:
            self.preference.refused(endpoint, self._now(), retry_after_s)
            return True
        if end.shed_reason == pb.SHED_REASON_OVERLOAD:
            self.preference.overloaded(endpoint, self._now(), retry_after_s)
        elif end.finish_reason in _ANSWERED:
            self.preference.answered(endpoint)
        return False


class ReplicaChannel:
    """The channel of one stream, as a ChannelSource: it changes to another replica when the stream is opened again."""

    def __init__(self, replicas: Replicas) -> None:
        """Begin with the best replica."""
        self._replicas = replicas
        self.endpoint = replicas.candidates()[0]
        """The replica of the present stream."""

    def channel(self) -> grpc.aio.Channel:
        """See ChannelSource."""
        return self._replicas.channel(self.endpoint)

    async def ready(self) -> grpc.aio.Channel:
        """Return the channel of the first replica that can be connected to; see ChannelSource."""
        failure = ConnectionLostError("no replica")
        for endpoint in self._replicas.candidates():
            try:
                channel = await self._replicas.connected(endpoint)
            except ConnectionLostError as error:
                failure = error
                continue
            self.endpoint = endpoint
            return channel
        raise failure

    def disconnect(self) -> None:
        """Keep the channel: other streams and calls use it."""


class ReplicaStream(SessionStream):
    """Sends the requests of one session to the best replica, and to the next one if that refuses or drains."""

    def __init__(
        self,
        replicas: Replicas,
        channel: ReplicaChannel,
        *,
        metadata: Metadata = (),
        settings: SessionSettings | None = None,
        listener: StreamListener | None = None,
    ) -> None:
        """Open the first stream with `start_nowait`, after `channel.ready()`."""
        super().__init__(channel, metadata=metadata, settings=settings, listener=_LossListener(self._on_lost, listener))
        self._replicas = replicas
        self._channel = channel
        self._is_dropping = False

    def send_nowait(self, request: pb.CompleteRequest, listener: RequestListener) -> None:
        """See SessionStream."""
        super().send_nowait(request, _EndListener(self._on_end, listener))

    def drop_nowait(self) -> None:
        """See SessionStream. The replica is not to blame: the next stream may go to it again."""
        self._is_dropping = True
        try:
            super().drop_nowait()
        finally:
            self._is_dropping = False

    def reconnect_after_s(self, error: ServiceError) -> float:
        """See SessionStream. Another replica need not be spared."""
        return super().reconnect_after_s(error) if self._replicas.is_best(self._channel.endpoint) else 0.0

    def _on_lost(self, error: ServiceError) -> None:
        if not self._is_dropping:
            self._replicas.note_error(self._channel.endpoint, error)

    def _on_end(self, end: pb.End) -> None:
        """Note an end, and leave a replica that is passed over once nothing is open on it."""
        self._replicas.note_end(self._channel.endpoint, end)
        if end.shed_reason and not self.num_open and not self._replicas.is_best(self._channel.endpoint):
            self.drop_nowait()


@dataclass(frozen=True, slots=True)
class _LossListener:
    """Tells the stream of its loss before it tells the caller's listener."""

    on_own: Callable[[ServiceError], None]
    listener: StreamListener | None

    def on_lost(self, error: ServiceError) -> None:
        self.on_own(error)
        if self.listener is not None:
            self.listener.on_lost(error)

    def on_reconnected(self, away_s: float) -> None:
        if self.listener is not None:
            self.listener.on_reconnected(away_s)


@dataclass(frozen=True, slots=True)
class _EndListener:
    """Tells the caller's listener of an end before it tells the stream."""

    on_own: Callable[[pb.End], None]
    listener: RequestListener

    def on_text(self, text: str) -> None:
        self.listener.on_text(text)

    def on_end(self, end: pb.End) -> None:
        self.listener.on_end(end)
        self.on_own(end)

    def on_error(self, error: ServiceError) -> None:
        self.listener.on_error(error)


async def _connect(channel: grpc.aio.Channel) -> bool:
    """Connect a channel; return whether it is connected. Unlike `channel_ready`, it does not wait after a refusal."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}:
            return False
        await channel.wait_for_state_change(state)
    return True
