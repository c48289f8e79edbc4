"""A completion server over gRPC, by `Session` streams or by `Complete` calls."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from loadtest.processes.counters import GENERATED_TOKENS, read_counter
from loadtest.targets import ClientSettings, Editor, TargetError, TargetSpec
from loadtest.targets.channels import CONNECT_S, SessionChannel, TargetChannels
from loadtest.targets.complete import CompleteEditor
from loadtest.targets.session import SessionEditor, StreamLog
from loadtest.targets.wire import RequestFactory
from loadtest.traffic.trace import Trace, TypedSession

# A gRPC server's core turns streams away at random when more than 1,000 wait to be accepted.
_STREAMS_PER_S = 1000.0
_STREAMS_AT_ONCE = 50
_SETTLE_S = 0.1


class GrpcTarget:
    """A completion server over gRPC. Its connections are kept from run to run."""

    def __init__(self, spec: TargetSpec, settings: ClientSettings) -> None:
        """Ask the servers of `spec`; each session asks the host of its region."""
        self.name = spec.name
        self.num_connected = 0
        self._log = StreamLog()
        self.reconnects_s = self._log.reconnects_s
        self._spec = spec
        self._settings = settings
        self._channels = TargetChannels(spec)

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        """Connect each session, with a new user unless the schedule names one."""
        await self._channels.connect(trace.sessions)
        found: list[SessionEditor | CompleteEditor] = []
        try:
            await self._open(trace, found)
            yield found
        finally:
            closing = [task for editor in found for task in editor.close_nowait()]
            await asyncio.gather(*closing, return_exceptions=True)

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
        self._channels.close()

    async def _open(self, trace: Trace, found: list[SessionEditor | CompleteEditor]) -> None:
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

    def _editor(self, session: TypedSession, run_id: str, seed: str) -> SessionEditor | CompleteEditor:
        channel = SessionChannel(self._channels, session.number, session.region)
        name = f"{run_id}-{session.number}"
        factory = RequestFactory(session, name, session.user or name, self._settings)
        if self._spec.kind == "grpc+complete":
            return CompleteEditor(channel, factory, self._settings)
        return SessionEditor(channel, factory, self._settings, self._log, f"{seed}/{session.number}/back-off")


def _batches(sessions: Sequence[TypedSession]) -> Iterator[Sequence[TypedSession]]:
    for start in range(0, len(sessions), _STREAMS_AT_ONCE):
        yield sessions[start : start + _STREAMS_AT_ONCE]
