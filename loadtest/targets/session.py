"""The editor with a `Session` stream for its whole life, which the client library reconnects; and its gRPC channel."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from completion.v1 import completion_pb2 as pb
from completion_client import (
    ChannelKey,
    ChannelPool,
    ConnectionLostError,
    ReplicaStream,
    ServiceError,
    SessionSettings,
    SessionStream,
)
from completion_client.request_fields import give_timeout
from completion_client.session_settings import RequestListener
from completion_client.tls_faults import explain_tls
from loadtest.targets import ClientSettings, TargetError, TargetSpec
from loadtest.targets.editor import is_typed_along
from loadtest.targets.record import NOT_CONNECTED, Outcome, Record
from loadtest.targets.wire import RequestFactory, error_text, take_end
from loadtest.traffic.typed import TypedSession

CONNECT_S = 10.0
_OPTIONS = (("grpc.enable_http_proxy", 0),)
_NEVER_S = float("inf")


class TargetChannels:
    """The channels of a target's sessions: one for each session, or a few that all share.

    They are kept from run to run, until the pool is closed.
    """

    def __init__(self, spec: TargetSpec) -> None:
        self.pool = ChannelPool(CONNECT_S, _OPTIONS)
        self.num_shared = 0
        self._spec = spec
        self._endpoints = spec.endpoints
        self._ranks: dict[int, int] = {}
        """The order in which sessions were seen. A worker has some of all sessions, so their numbers have gaps."""

    async def connect(self, sessions: Sequence[TypedSession]) -> None:
        """Connect the channels that sessions need. Raises TargetError if a host takes too long."""
        self.num_shared = max(self.num_shared, self._spec.num_connections(len(sessions)))
        try:
            await self.pool.connect({self.key(each.number, each.region) for each in sessions})
        except ConnectionLostError as error:
            reasons = [await asyncio.to_thread(explain_tls, each) for each in self._endpoints]
            raise TargetError(f"{self._spec.name}: {next(filter(None, reasons), error.message)}") from None

    def key(self, session: int, region: int) -> ChannelKey:
        """Return the key of the channel of a session in a region."""
        endpoint = self._endpoints[region % len(self._endpoints)]
        if not self.num_shared:
            return ChannelKey(endpoint, session)
        return ChannelKey(endpoint, self._ranks.setdefault(session, len(self._ranks)) % self.num_shared)


@dataclass(slots=True)
class SessionChannel:
    """The channel of one session, as a ChannelSource."""

    channels: TargetChannels
    session: int
    region: int
    host_shift: int = 0
    """How many hosts after its region's own the session goes to."""

    def channel(self) -> grpc.aio.Channel:
        """Return the channel, connected or not."""
        return self.channels.pool.channel(self._key())

    async def ready(self) -> grpc.aio.Channel:
        """Return the channel when it is connected. Raises ConnectionLostError if its host takes too long."""
        return await self.channels.pool.ready(self._key())

    def disconnect(self) -> None:
        """Close the session's own channel; a shared one stays open."""
        if not self.channels.num_shared:
            self.channels.pool.disconnect(self._key())

    def move(self, host_shift: int | None) -> None:
        """Go to another host from now on; None stays at the present one."""
        if host_shift is not None:
            self.host_shift = host_shift

    def _key(self) -> ChannelKey:
        return self.channels.key(self.session, self.region + self.host_shift)


@dataclass(slots=True)
class StreamLog:
    """Counts the losses of a target's streams, as their StreamListener."""

    reconnects_s: list[float] = field(default_factory=list)
    """How long each lost stream was away until it came back."""
    num_lost: int = 0
    """How often a stream was lost."""
    last_error: str = ""

    def on_lost(self, error: ServiceError) -> None:
        """See StreamListener."""
        self.num_lost += 1
        self.last_error = error_text(error)

    def on_reconnected(self, away_s: float) -> None:
        """See StreamListener."""
        self.reconnects_s.append(away_s)


@dataclass(frozen=True, slots=True)
class RecordListener:
    """Writes the events of a request to its record."""

    record: Record

    def on_text(self, text: str) -> None:
        """See RequestListener."""
        self.record.num_messages += 1
        self.record.text_came(text)

    def on_end(self, end: pb.End) -> None:
        """See RequestListener."""
        self.record.num_messages += 1
        take_end(self.record, end)

    def on_error(self, error: ServiceError) -> None:
        """See RequestListener."""
        self.record.end(Outcome.ERROR, error_text(error))


class StreamEditor(ABC):
    """One session. The server ends the older request when a newer one comes."""

    def __init__(
        self, stream: SessionStream | ReplicaStream, factory: RequestFactory, settings: ClientSettings
    ) -> None:
        self.stream = stream
        self._factory = factory
        self._settings = settings

    @abstractmethod
    def drop_nowait(self, host_shift: int | None = None) -> None:
        """See Editor."""

    def listener(self, record: Record) -> RequestListener:
        """Return the listener that writes the events of a request to its record."""
        return RecordListener(record)

    @property
    def is_connected(self) -> bool:
        """See Editor."""
        return self.stream.is_connected

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor."""
        request, loop = record.request, asyncio.get_running_loop()
        ends_at_s = _NEVER_S
        message = self._factory.message(record, max_tokens)
        if self._settings.deadline_s:
            ends_at_s = record.clock.loop_time(request.intended_at_s + self._settings.deadline_s)
            give_timeout(message, ends_at_s - loop.time())
        try:
            self.stream.send_nowait(message, self.listener(record), self._settings.patience_s)
        except ConnectionLostError:
            record.end_unsent(NOT_CONNECTED)
            return
        if self._settings.cancels_at_key and request.next_key_at_s != _NEVER_S:
            loop.call_at(record.clock.loop_time(request.next_key_at_s), self._key_pressed, record)
        if self._settings.deadline_s:
            loop.call_at(ends_at_s, self._deadline_passed, record)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; return the tasks that end with it."""
        return self.stream.close_nowait()

    def _key_pressed(self, record: Record) -> None:
        """Cancel a request that a key made stale, unless the user types the text of its answer."""
        if record.outcome is None and not is_typed_along(record.text, record.request):
            self.stream.cancel_nowait(record.request.sequence)

    def _deadline_passed(self, record: Record) -> None:
        if record.outcome is None:
            self.stream.discard_nowait(record.request.sequence)
            record.end(Outcome.DEADLINE)


class SessionEditor(StreamEditor):
    """A session whose region is given; the server of the region is the host of its channel."""

    def __init__(
        self,
        channel: SessionChannel,
        factory: RequestFactory,
        settings: ClientSettings,
        log: StreamLog,
        seed: str,
    ) -> None:
        """Open the stream on a channel that is connected; its losses are added to `log`."""
        self._channel = channel
        stream = SessionStream(
            channel, metadata=factory.metadata, settings=session_settings(factory, settings, seed), listener=log
        )
        super().__init__(stream, factory, settings)
        stream.start_nowait()

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """See Editor."""
        self.stream.drop_nowait()
        self._channel.move(host_shift)


def session_settings(factory: RequestFactory, settings: ClientSettings, seed: str) -> SessionSettings:
    """Return the client library's settings of a session, whose waits are drawn from a seed."""
    return SessionSettings(
        backoff_min_s=settings.backoff_min_s,
        backoff_max_s=settings.backoff_max_s,
        backoff_seed=seed,
        read_interval_s=factory.session.reads_every_s,
    )
