"""Completion servers over gRPC: by `Session` streams or by `Complete` calls, in given regions or the nearest."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import grpc

from completion_client import (
    ChannelKey,
    ChannelPool,
    ConnectionLostError,
    DeadlineExceededError,
    ServiceError,
    SessionStream,
)
from completion_client.client import stream_events
from completion_client.tls_faults import explain_tls
from loadtest.targets import NEAREST, ClientSettings, Editor, TargetError, TargetSpec
from loadtest.targets.editor import (
    CallEditor,
    RequestFactory,
    StreamEditor,
    StreamLog,
    error_text,
    session_settings,
    take_end,
)
from loadtest.targets.nearest import NearestHosts
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.typed import Trace, TypedSession

CONNECT_S = 10.0
# A gRPC server's core turns streams away at random when more than 1,000 wait to be accepted.
_STREAMS_PER_S = 1000.0
_STREAMS_AT_ONCE = 50
_SETTLE_S = 0.1
_OPTIONS = (("grpc.enable_http_proxy", 0),)


@dataclass(slots=True)
class SessionChannel:
    """The channel of one session, as a ChannelSource."""

    hosts: "RegionHosts"
    session: int
    region: int
    host_shift: int = 0
    """How many hosts after its region's own the session goes to."""

    def channel(self) -> grpc.aio.Channel:
        """Return the channel, connected or not."""
        return self.hosts.pool.channel(self._key())

    async def ready(self) -> grpc.aio.Channel:
        """Return the channel when it is connected. Raises ConnectionLostError if its host takes too long."""
        return await self.hosts.pool.ready(self._key())

    def disconnect(self) -> None:
        """Close the session's own channel; a shared one stays open."""
        if not self.hosts.num_shared:
            self.hosts.pool.disconnect(self._key())

    def move(self, host_shift: int | None) -> None:
        """Go to another host from now on; None stays at the present one."""
        if host_shift is not None:
            self.host_shift = host_shift

    def _key(self) -> ChannelKey:
        return self.hosts.key(self.session, self.region + self.host_shift)


class CompleteEditor(CallEditor):
    """One editor; leaving a call cancels the request."""

    def __init__(self, channel: SessionChannel, factory: RequestFactory, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._channel = channel
        self._factory = factory

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        message = self._factory.message(record, max_tokens)
        timeout_s, metadata = self.settings.deadline_s or None, self._factory.metadata
        try:
            async for event in stream_events(self._channel.channel(), message, timeout_s=timeout_s, metadata=metadata):
                if event.HasField("delta"):
                    record.text_came(event.delta.text)
                else:
                    take_end(record, event.end)
        except DeadlineExceededError:
            record.end(Outcome.DEADLINE)
        except ServiceError as error:
            record.end(Outcome.ERROR, error_text(error))
        record.end(Outcome.ERROR, "the call ended without an End")

    def disconnect(self, host_shift: int | None) -> None:
        """See CallEditor."""
        self._channel.disconnect()
        self._channel.move(host_shift)


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


class RegionHosts:
    """A host for each region; each session asks that of its region.

    Each session has a channel of its own, or all share a few. They are kept from run to run, until the pool is closed.
    """

    def __init__(self, spec: TargetSpec, settings: ClientSettings, log: StreamLog) -> None:
        """Connect nothing yet; lost streams are added to `log`."""
        self.pool = ChannelPool(CONNECT_S, _OPTIONS)
        self.num_shared = 0
        self._spec = spec
        self._settings = settings
        self._log = log
        self._endpoints = spec.endpoints
        self._ranks: dict[int, int] = {}
        """The order in which sessions were seen. A worker has some of all sessions, so their numbers have gaps."""

    async def connect(self, trace: Trace) -> None:
        """Connect the channels that the sessions need. Raises TargetError if a host takes too long."""
        self.num_shared = max(self.num_shared, self._spec.num_connections(len(trace.sessions)))
        try:
            await self.pool.connect({self.key(each.number, each.region) for each in trace.sessions})
        except ConnectionLostError as error:
            reasons = [await asyncio.to_thread(explain_tls, each) for each in self._endpoints]
            raise TargetError(f"{self._spec.name}: {next(filter(None, reasons), error.message)}") from None

    def key(self, session: int, region: int) -> ChannelKey:
        """Return the key of the channel of a session in a region."""
        endpoint = self._endpoints[region % len(self._endpoints)]
        if not self.num_shared:
            return ChannelKey(endpoint, session)
        return ChannelKey(endpoint, self._ranks.setdefault(session, len(self._ranks)) % self.num_shared)

    def editor(self, session: TypedSession, factory: RequestFactory, seed: str) -> SessionEditor | CompleteEditor:
        """Return the editor of a session."""
        channel = SessionChannel(self, session.number, session.region)
        if self._spec.kind == "grpc+complete":
            return CompleteEditor(channel, factory, self._settings)
        return SessionEditor(channel, factory, self._settings, self._log, seed)

    def present(self) -> Mapping[int, int]:
        """Return nothing: these editors don't choose their host."""
        return {}

    async def aclose(self) -> None:
        """Close the connections."""
        self.pool.close()


class GrpcTarget:
    """One or several completion servers over gRPC. The connections are kept from run to run."""

    def __init__(self, spec: TargetSpec, settings: ClientSettings) -> None:
        """Ask the servers of `spec`: each session asks the host of its region, or the nearest."""
        self.name = spec.name
        self.num_connected = 0
        self._log = StreamLog()
        self.reconnects_s = self._log.reconnects_s
        self._spec = spec
        self._settings = settings
        hosts = NearestHosts if spec.kind == NEAREST else RegionHosts
        self._hosts = hosts(spec, settings, self._log)

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        """Connect each session, with a new user unless the schedule names one."""
        await self._hosts.connect(trace)
        found: list[StreamEditor | CompleteEditor] = []
        try:
            await self._open(trace, found)
            yield found
        finally:
            closing = [task for editor in found for task in editor.close_nowait()]
            await asyncio.gather(*closing, return_exceptions=True)

    def present(self) -> Mapping[int, int]:
        """See Target."""
        return self._hosts.present()

    async def generated_tokens(self) -> float:
        """Return the engine's counter; nan if the target has no metrics URL."""
        return await self._spec.generated_tokens()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._hosts.aclose()

    async def _open(self, trace: Trace, found: list[StreamEditor | CompleteEditor]) -> None:
        """Add an editor for each session, no faster than servers accept streams; wait until no stream is lost."""
        run_id = uuid.uuid4().hex[:8]
        self.num_connected = 0
        for start in range(0, len(trace.sessions), _STREAMS_AT_ONCE):
            sessions = trace.sessions[start : start + _STREAMS_AT_ONCE]
            found += [self._editor(session, run_id, trace.seed) for session in sessions]
            self.num_connected = len(found)
            await asyncio.sleep(len(sessions) / _STREAMS_PER_S)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._settle(found)
        except TimeoutError:
            raise TargetError(f"{self.name}: streams end as soon as they are opened: {self._log.last_error}") from None
        self.reconnects_s.clear()

    async def _settle(self, found: Sequence[Editor]) -> None:
        """Wait until no stream is lost for a while."""
        num_lost = -1
        while num_lost != self._log.num_lost or not all(editor.is_connected for editor in found):
            num_lost = self._log.num_lost
            await asyncio.sleep(_SETTLE_S)

    def _editor(self, session: TypedSession, run_id: str, seed: str) -> StreamEditor | CompleteEditor:
        name = f"{run_id}-{session.number}"
        factory = RequestFactory(session, name, session.user or name, self._settings)
        return self._hosts.editor(session, factory, f"{seed}/{session.number}/back-off")
