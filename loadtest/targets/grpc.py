"""Completion servers over gRPC: by `Session` streams or by `Complete` calls, in given regions or the nearest."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Self

from completion_client import (
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    Endpoint,
    Regions,
    ServiceError,
    Token,
)
from completion_client.tls_faults import explain_tls
from loadtest.targets import NEAREST, ClientSettings, Editor, TargetError, TargetSpec, token_of
from loadtest.targets.editor import CallEditor, RequestFactory, error_text, take_end
from loadtest.targets.nearest import NearestHosts
from loadtest.targets.record import Outcome, Record
from loadtest.targets.streams import StreamEditor, StreamLog
from loadtest.traffic.typed import Trace, TypedSession

CONNECT_S = 10.0
_CONNECTS_AT_ONCE = 500
# A gRPC server's core turns streams away at random when more than 1,000 wait to be accepted.
_STREAMS_PER_S = 1000.0
_STREAMS_AT_ONCE = 50
_SETTLE_S = 0.1
_OPTIONS = (("grpc.enable_http_proxy", 0),)


class FixedHost:
    """A session's client of one of a target's hosts, which a drop of the connection may change."""

    def __init__(self, regions: Regions, hosts: Sequence[Endpoint], connection: int, token: Token | None) -> None:
        """Use the connections of a number, and present a token."""
        self.client = CompletionClient(regions, connection=connection, connect_timeout_s=CONNECT_S, token=token)
        self._hosts = hosts

    def choose(self, number: int) -> None:
        """Use a host, modulo the number of hosts, from now on."""
        host = self._hosts[number % len(self._hosts)]
        self.client.reorder(lambda *_: (host,))


class CompleteEditor(CallEditor):
    """One editor; leaving a call cancels the request."""

    def __init__(self, host: FixedHost, region: int, factory: RequestFactory, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._host = host
        self._region = region
        self._factory = factory

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        attempts = self._host.client.attempts(
            self._factory.message(record, max_tokens),
            timeout_s=self.settings.deadline_s or None,
            metadata=self._factory.metadata,
        )
        try:
            async with aclosing(attempts.events()) as events:
                async for event in events:
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
        self._host.client.reconnect_nowait()
        if host_shift is not None:
            self._host.choose(self._region + host_shift)


class RegionHosts:
    """A host for each region; each session asks that of its region.

    Each session has a connection of its own, or all share a few. They are kept from run to run, until this is closed.
    """

    def __init__(self, spec: TargetSpec, settings: ClientSettings, log: StreamLog) -> None:
        """Connect nothing yet; lost streams are added to `log`."""
        self._regions = Regions(dict.fromkeys(spec.endpoints), channel_options=_OPTIONS)
        self._tokens = spec.credentials.tokens()
        self._num_shared = 0
        self._spec = spec
        self._settings = settings
        self._log = log
        self._hosts: dict[int, FixedHost] = {}

    async def connect(self, trace: Trace) -> None:
        """Connect what the sessions need. Raises TargetError if a host takes too long."""
        num_shared = max(self._num_shared, self._spec.num_connections(len(trace.sessions)))
        if num_shared != self._num_shared:
            self._hosts.clear()
        self._num_shared = num_shared
        remaining = iter([self._chosen(each) for each in trace.sessions])

        async def connect_in_turn() -> None:
            for host in remaining:
                await host.client.connect()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_CONNECTS_AT_ONCE):
                    group.create_task(connect_in_turn())
        except* ConnectionLostError as failures:
            reasons = [await asyncio.to_thread(explain_tls, each) for each in self._regions.endpoints]
            message = next(filter(None, reasons), str(failures.exceptions[0]))
            raise TargetError(f"{self._spec.name}: {message}") from None

    def editor(self, session: TypedSession, factory: RequestFactory, seed: str) -> StreamEditor | CompleteEditor:
        """Return the editor of a session."""
        host = self._chosen(session)
        if self._spec.kind == "grpc+complete":
            return CompleteEditor(host, session.region, factory, self._settings)

        def shift(host_shift: int) -> None:
            host.choose(session.region + host_shift)

        return StreamEditor(host.client, factory, self._settings, self._log, seed, on_shift=shift)

    def present(self) -> Mapping[int, int]:
        """Return nothing: these editors don't choose their host."""
        return {}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._regions.aclose()

    def _chosen(self, session: TypedSession) -> FixedHost:
        """Return a session's host, that of its region."""
        host = self._hosts.get(session.number)
        if host is None:
            # A worker has some of all sessions, so their numbers have gaps.
            connection = len(self._hosts) % self._num_shared if self._num_shared else session.number
            token = token_of(self._tokens, session.number)
            host = self._hosts[session.number] = FixedHost(self._regions, self._spec.endpoints, connection, token)
        host.choose(session.region)
        return host


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
