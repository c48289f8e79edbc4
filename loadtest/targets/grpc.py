"""Completion servers over gRPC: by `Session` streams or by `Complete` calls, in given regions or the nearest."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Protocol, Self

from loadtest.processes.counters import GENERATED_TOKENS, read_counter
from loadtest.targets import NEAREST, ClientSettings, Editor, TargetError, TargetSpec
from loadtest.targets.channels import CONNECT_S, SessionChannel, TargetChannels
from loadtest.targets.complete import CompleteEditor
from loadtest.targets.nearest import NearestHosts
from loadtest.targets.session import SessionEditor, StreamEditor, StreamLog
from loadtest.targets.wire import RequestFactory
from loadtest.traffic.trace import Trace, TypedSession

# A gRPC server's core turns streams away at random when more than 1,000 wait to be accepted.
_STREAMS_PER_S = 1000.0
_STREAMS_AT_ONCE = 50
_SETTLE_S = 0.1


class Hosts(Protocol):
    """The connections of a target, which all its editors in this process share."""

    async def connect(self, trace: Trace) -> None:
        """Connect what the sessions need.

        Raises:
            TargetError: a host takes too long.

        """
        ...

    def editor(self, session: TypedSession, factory: RequestFactory, seed: str) -> StreamEditor | CompleteEditor:
        """Return the editor of a session."""
        ...

    def present(self) -> Mapping[int, int]:
        """See Target."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


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
        is_nearest = spec.kind == NEAREST
        self._hosts: Hosts = (NearestHosts if is_nearest else RegionHosts)(spec, settings, self._log)

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
        if not self._spec.metrics_url:
            return float("nan")
        return await asyncio.to_thread(read_counter, self._spec.metrics_url, GENERATED_TOKENS)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._hosts.aclose()

    async def _open(self, trace: Trace, found: list[StreamEditor | CompleteEditor]) -> None:
        """Add an editor for each session, no faster than servers accept streams; wait until no stream is lost."""
        run_id = uuid.uuid4().hex[:8]
        self.num_connected = 0
        for sessions in _batches(trace.sessions):
            found += [self._editor(session, run_id, trace.seed) for session in sessions]
            self.num_connected = len(found)
            await asyncio.sleep(len(sessions) / _STREAMS_PER_S)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._settle(found)
        except TimeoutError:
            msg = f"{self.name}: streams end as soon as they are opened: {self._log.last_error}"
            raise TargetError(msg) from None
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


class RegionHosts:
    """A host for each region; each session asks that of its region."""

    def __init__(self, spec: TargetSpec, settings: ClientSettings, log: StreamLog) -> None:
        """Connect nothing yet; lost streams are added to `log`."""
        self._spec = spec
        self._settings = settings
        self._log = log
        self._channels = TargetChannels(spec)

    async def connect(self, trace: Trace) -> None:
        """See Hosts."""
        await self._channels.connect(trace.sessions)

    def editor(self, session: TypedSession, factory: RequestFactory, seed: str) -> SessionEditor | CompleteEditor:
        """See Hosts."""
        channel = SessionChannel(self._channels, session.number, session.region)
        if self._spec.kind == "grpc+complete":
            return CompleteEditor(channel, factory, self._settings)
        return SessionEditor(channel, factory, self._settings, self._log, seed)

    def present(self) -> Mapping[int, int]:
        """Return nothing; see Target."""
        return {}

    async def aclose(self) -> None:
        """See Hosts."""
        self._channels.close()


def _batches(sessions: Sequence[TypedSession]) -> Iterator[Sequence[TypedSession]]:
    for start in range(0, len(sessions), _STREAMS_AT_ONCE):
        yield sessions[start : start + _STREAMS_AT_ONCE]
