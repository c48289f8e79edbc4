"""Completion servers over gRPC: by `Session` streams or by `Complete` calls, in given regions or the nearest."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Self

from completion_client import CompletionClient, ConnectionLostError, DeadlineExceededError, Regions, ServiceError
from completion_client.tls_faults import explain_tls
from loadtest.targets import NEAREST, ClientSettings, Editor, TargetError, TargetSpec, token_of
from loadtest.targets.editor import CallEditor, RequestFactory, error_text, take_end
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


class CompleteEditor(CallEditor):
    """One editor; leaving a call cancels the request."""

    def __init__(
        self,
        client: CompletionClient,
        factory: RequestFactory,
        settings: ClientSettings,
        on_shift: Callable[[int], None] | None,
    ) -> None:
        super().__init__(settings)
        self._client = client
        self._factory = factory
        self._on_shift = on_shift

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        message, timeout_s = self._factory.message(record, max_tokens), self.settings.deadline_s or None
        attempts = self._client.attempts(message, timeout_s=timeout_s, metadata=self._factory.metadata)
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
        self._client.reconnect_nowait()
        if host_shift is not None and self._on_shift is not None:
            self._on_shift(host_shift)


class GrpcTarget:
    """One or several completion servers over gRPC. The connections are kept from run to run.

    Each session asks the host of its region, or, with grpc+nearest, the nearest that works, by the client library's
    measurements. Each has a connection of its own, or all share a few.
    """

    def __init__(self, spec: TargetSpec, settings: ClientSettings) -> None:
        """Connect nothing yet."""
        self.name = spec.name
        self.num_connected = 0
        self._log = StreamLog()
        self.reconnects_s = self._log.reconnects_s
        self._spec = spec
        self._settings = settings
        self._is_nearest = spec.kind == NEAREST
        self._numbers = {each: number for number, each in enumerate(spec.endpoints)}
        self._regions = Regions(self._numbers, channel_options=_OPTIONS)
        self._tokens = spec.credentials.tokens()
        self._num_shared = 0
        self._clients: dict[int, CompletionClient] = {}
        """The client of each session, by its number."""
        self._editors: list[StreamEditor | CompleteEditor] = []

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        """Connect each session, with a new user unless the schedule names one."""
        await self._connect(trace)
        self._editors.clear()
        try:
            await self._open(trace)
            yield self._editors
        finally:
            closing = [task for editor in self._editors for task in editor.close_nowait()]
            await asyncio.gather(*closing, return_exceptions=True)

    def present(self) -> Mapping[int, int]:
        """See Target; an editor without a connection counts at its last server."""
        if not self._is_nearest:
            return {}
        return Counter(self._numbers[each.stream.endpoint] for each in self._editors if isinstance(each, StreamEditor))

    async def generated_tokens(self) -> float:
        """Return the engine's counter; nan if the target has no metrics URL."""
        return await self._spec.generated_tokens()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close_clients()
        await self._regions.aclose()

    async def _connect(self, trace: Trace) -> None:
        """Connect what the sessions need. Raises TargetError if a host takes too long."""
        num_shared = self._spec.num_connections(len(trace.sessions))
        if num_shared > self._num_shared:
            await self._close_clients()
            self._num_shared = num_shared
        remaining = iter([self._client(each) for each in trace.sessions])

        async def connect_in_turn() -> None:
            for client in remaining:
                await client.connect()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_CONNECTS_AT_ONCE):
                    group.create_task(connect_in_turn())
        except* ConnectionLostError as failures:
            reasons = [await asyncio.to_thread(explain_tls, each) for each in self._regions.endpoints]
            message = next(filter(None, reasons), str(failures.exceptions[0]))
            raise TargetError(f"{self.name}: {message}") from None

    def _client(self, session: TypedSession) -> CompletionClient:
        """Return a session's client, which asks the host of its region or the nearest."""
        client = self._clients.get(session.number)
        if client is None:
            # A worker has some of all sessions, so their numbers have gaps.
            connection = len(self._clients) % self._num_shared if self._num_shared else session.number
            client = self._clients[session.number] = CompletionClient(
                self._regions,
                user=session.user or str(session.number),
                token=token_of(self._tokens, session.number),
                connection=None if self._is_nearest else connection,
                connect_timeout_s=None if self._is_nearest else CONNECT_S,
            )
        if not self._is_nearest:
            self._shift(session, 0)
        return client

    def _shift(self, session: TypedSession, host_shift: int) -> None:
        """Let a session use the host so many after that of its region."""
        hosts = self._spec.endpoints
        host = hosts[(session.region + host_shift) % len(hosts)]
        self._clients[session.number].reorder(lambda *_: (host,))

    async def _close_clients(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def _open(self, trace: Trace) -> None:
        """Add an editor for each session, no faster than servers accept streams; wait until no stream is lost."""
        run_id = uuid.uuid4().hex[:8]
        self.num_connected = 0
        for start in range(0, len(trace.sessions), _STREAMS_AT_ONCE):
            sessions = trace.sessions[start : start + _STREAMS_AT_ONCE]
            self._editors += [self._editor(session, f"{run_id}-{session.number}", trace.seed) for session in sessions]
            self.num_connected = len(self._editors)
            await asyncio.sleep(len(sessions) / _STREAMS_PER_S)
        num_lost = -1
        try:
            async with asyncio.timeout(CONNECT_S):
                while num_lost != self._log.num_lost or not all(editor.is_connected for editor in self._editors):
                    num_lost = self._log.num_lost
                    await asyncio.sleep(_SETTLE_S)
        except TimeoutError:
            raise TargetError(f"{self.name}: streams end as soon as they are opened: {self._log.last_error}") from None
        self.reconnects_s.clear()

    def _editor(self, session: TypedSession, name: str, seed: str) -> StreamEditor | CompleteEditor:
        client, settings = self._clients[session.number], self._settings
        factory = RequestFactory(session, name, session.user or name, settings)
        on_shift = None if self._is_nearest else partial(self._shift, session)
        if self._spec.kind == "grpc+complete":
            return CompleteEditor(client, factory, settings, on_shift)
        hosts, draws = self._numbers if self._is_nearest else {}, f"{seed}/{session.number}/back-off"
        return StreamEditor(client, factory, settings, self._log, draws, on_shift=on_shift, hosts=hosts)
