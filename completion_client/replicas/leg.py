"""One stream of a session to one server, and the requests of a session that moves between servers."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import grpc

from completion.v1 import completion_pb2 as pb
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ConnectionLostError, ServiceError
from completion_client.regions.checks import connect, is_done_within
from completion_client.regions.connections import Connection
from completion_client.regions.regions import Regions
from completion_client.regions.silence import SilenceError, SilenceGuard
from completion_client.session_stream import RequestListener, SessionSettings, SessionStream


class LegOwner(Protocol):
    """Decides what follows from the events of a leg."""

    def leg_lost(self, leg: "Leg", error: ServiceError) -> None:
        """Take the loss of a leg. Each of its requests fails next."""
        ...

    def leg_silent(self, leg: "Leg") -> float | None:
        """Take the silence of a server; return the loop's time at which it is given up, None for never."""
        ...

    def leg_accepted(self, leg: "Leg", away_s: float) -> None:
        """Take the first sign of a server on a leg that replaces a lost one."""
        ...


class RequestOwner(Protocol):
    """Decides what follows from the events of a request."""

    def request_ended(self, request: "RoutedRequest", end: pb.End) -> None:
        """Take the end that a server sent."""
        ...

    def request_failed(self, request: "RoutedRequest", error: ServiceError) -> None:
        """Take the loss of the leg of a request."""
        ...


class Leg:
    """A stream to one server, and the guard that notices when that sends nothing any more."""

    def __init__(
        self,
        owner: LegOwner,
        regions: Regions,
        connection: Connection,
        metadata: Metadata,
        settings: SessionSettings,
        lost_at_s: float | None,
        connect_timeout_s: float,
    ) -> None:
        """Open the stream; `lost_at_s` is the loop's time at which the stream was lost that this one replaces.

        A stream that the server ends in good order opens again if it connects within `connect_timeout_s`.
        """
        self.connection = connection
        self.was_connected = connection.is_ready
        """Whether there was a connection when the stream was opened."""
        self.may_retry = False
        """Whether the requests of this lost leg may be sent to another server."""
        self.last_sequence = 0
        self._owner = owner
        self._regions = regions
        self._guard = SilenceGuard(self._alive_at_s, self._on_silent, self._on_given_up)
        channels = _FixedChannel(connection, connect_timeout_s)
        self._stream = SessionStream(channels, metadata=metadata, settings=settings, listener=self)
        self._stream.start_nowait(lost_at_s)

    @property
    def endpoint(self) -> Endpoint:
        """The server."""
        return self.connection.endpoint

    @property
    def is_silent(self) -> bool:
        """Whether the server sends nothing, though something is due."""
        return self._guard.is_silent

    @property
    def num_open(self) -> int:
        """Requests that have neither ended nor failed."""
        return self._stream.num_open

    def send_nowait(self, request: "RoutedRequest", silence_s: float | None) -> None:
        """Send a request; the server may send nothing for `silence_s`, or for ever.

        Raises:
            ConnectionLostError: the stream is lost.

        """
        self._stream.send_nowait(request.message, request)
        self.last_sequence = request.message.sequence
        if silence_s is not None:
            self._guard.expect_nowait(silence_s)

    def cancel_nowait(self, sequence: int) -> None:
        """See SessionStream."""
        self._stream.cancel_nowait(sequence)

    def discard_nowait(self, sequence: int) -> None:
        """See SessionStream."""
        self._stream.discard_nowait(sequence)
        self.note_answer()

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        """See SessionStream."""
        self._stream.report_nowait(feedback)

    def heard_nowait(self) -> None:
        """Note that the server sent something."""
        self._guard.heard_nowait()
        self.connection.heard_at_s = asyncio.get_running_loop().time()

    def note_answer(self) -> None:
        """Expect nothing more if no request is open."""
        if not self.num_open:
            self._guard.stop_nowait()

    def drop_nowait(self, error: ServiceError) -> None:
        """Lose the stream with an error."""
        self._stream.drop_nowait(error)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; see SessionStream."""
        self._guard.stop_nowait()
        return self._stream.close_nowait()

    def on_lost(self, error: ServiceError) -> None:
        """See StreamListener."""
        self._owner.leg_lost(self, error)

    def on_reconnected(self, away_s: float) -> None:
        """See StreamListener."""
        self.heard_nowait()
        self._owner.leg_accepted(self, away_s)

    async def _alive_at_s(self, since_s: float, within_s: float) -> float | None:
        return await self._regions.alive_at_s(self.connection, since_s, within_s)

    def _on_silent(self, _silence_s: float) -> float | None:
        return self._owner.leg_silent(self)

    def _on_given_up(self, silence_s: float) -> None:
        self.drop_nowait(SilenceError(f"{self.endpoint.address} has sent nothing for {silence_s * 1000:.0f} ms"))


@dataclass(slots=True)
class RoutedRequest:
    """A request of a session, which may be sent to another server until text has come. Also its RequestListener."""

    owner: RequestOwner
    message: pb.CompleteRequest
    listener: RequestListener
    leg: Leg
    ends_at_s: float | None
    """The loop's time at which the caller gives it up."""
    sent_at_s: float = 0.0
    num_sent: int = 0
    has_text: bool = False
    is_cancelled: bool = False
    has_ended: bool = False
    """Whether the listener has got its last event, or gets it now."""

    def supersedes(self, other: "RoutedRequest") -> bool:
        """Return whether this makes another server's request useless. A server ends its own; prefetches go on."""
        is_older = other.message.sequence < self.message.sequence and other.leg.endpoint != self.leg.endpoint
        kinds = self.message.trigger, other.message.trigger
        return is_older and not (other.is_cancelled or other.has_ended) and pb.TRIGGER_PREFETCH not in kinds

    def on_text(self, text: str) -> None:
        """See RequestListener."""
        self.leg.heard_nowait()
        self.has_text = True
        self.listener.on_text(text)

    def on_end(self, end: pb.End) -> None:
        """See RequestListener."""
        self.leg.heard_nowait()
        self.owner.request_ended(self, end)

    def on_error(self, error: ServiceError) -> None:
        """See RequestListener."""
        self.owner.request_failed(self, error)


@dataclass(frozen=True, slots=True)
class _FixedChannel:
    """The channel of one connection, as a ChannelSource."""

    connection: Connection
    connect_timeout_s: float

    def channel(self) -> grpc.aio.Channel:
        return self.connection.channel

    async def ready(self) -> grpc.aio.Channel:
        channel = self.connection.channel
        connecting = asyncio.create_task(connect(channel))
        try:
            if await is_done_within(connecting, self.connect_timeout_s) and connecting.result():
                return channel
        finally:
            connecting.cancel()
        msg = f"no connection to {self.connection.endpoint.address}"
        raise ConnectionLostError(msg)

    def disconnect(self) -> None:
        """Keep the channel: others use it."""
