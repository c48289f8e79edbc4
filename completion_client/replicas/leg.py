"""One stream of a session to one server."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ConnectionLostError, ServiceError
from completion_client.health import connects_within
from completion_client.regions.connections import Connection
from completion_client.regions.regions import Regions
from completion_client.regions.silence import SilenceError, SilenceGuard
from completion_client.session_settings import RequestListener, SessionSettings
from completion_client.session_stream import SessionStream

if TYPE_CHECKING:
    from completion_client.replicas.legs import Legs


class Leg:
    """A stream to one server, and the guard that notices when that sends nothing any more."""

    def __init__(
        self,
        owner: "Legs",
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
        alive_at_s = partial(regions.alive_at_s, connection)
        self._guard = SilenceGuard(alive_at_s, lambda _silence_s: owner.leg_silent(self), self._on_given_up)
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

    def send_nowait(self, request: pb.CompleteRequest, listener: RequestListener, silence_s: float | None) -> None:
        """Send a request; the server may send nothing for `silence_s`, or for ever.

        Raises:
            ConnectionLostError: the stream is lost.

        """
        self._stream.send_nowait(request, listener)
        self.last_sequence = request.sequence
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

    def _on_given_up(self, silence_s: float) -> None:
        self.drop_nowait(SilenceError(f"{self.endpoint.address} has sent nothing for {silence_s * 1000:.0f} ms"))


@dataclass(frozen=True, slots=True)
class _FixedChannel:
    """The channel of one connection, as a ChannelSource."""

    connection: Connection
    connect_timeout_s: float

    def channel(self) -> grpc.aio.Channel:
        return self.connection.channel

    async def ready(self) -> grpc.aio.Channel:
        channel = self.connection.channel
        if await connects_within(channel, self.connect_timeout_s):
            return channel
        msg = f"no connection to {self.connection.endpoint.address}"
        raise ConnectionLostError(msg)

    def disconnect(self) -> None:
        """Keep the channel: others use it."""
