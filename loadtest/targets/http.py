"""A server over HTTP: a POST for each request, cancelled by closing the connection at the next key."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp

from loadtest.processes.counters import GENERATED_TOKENS, read_counter
from loadtest.targets import ClientSettings, Editor, TargetSpec
from loadtest.targets.calls import CallEditor
from loadtest.targets.dialects import Dialect, dialect_of
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.trace import Trace, TypedSession

_KEPT_S = 3.0
"""How long an idle connection is kept: less than servers keep it, 5 s for vLLM and llama.cpp."""
_LONGEST_LINE = 1 << 20


class HttpTarget:
    """A server that speaks one of the dialects."""

    def __init__(self, spec: TargetSpec, settings: ClientSettings, body: Mapping[str, Any] | None = None) -> None:
        """Ask the servers of `spec`; `body` is added to each request's body.

        Raises:
            TargetError: one of its options is invalid.

        """
        self.name = spec.name
        self.num_connected = 0
        self.reconnects_s: list[float] = []
        """Stays empty: these editors connect as they ask."""
        self._spec = spec
        self._settings = settings
        self._body = dict(body or {})
        self._dialect = dialect_of(spec)
        self._http: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        """Yield an editor for each session; connections are opened when they are needed, and kept alive."""
        assert self._http is not None, "the target was not entered"
        found = [
            _HttpEditor(self._http, self._spec.hosts, session, self._dialect, self._settings, self._body)
            for session in trace.sessions
        ]
        self.num_connected = len(found)
        try:
            yield found
        finally:
            closing = [task for editor in found for task in editor.close_nowait()]
            await asyncio.gather(*closing, return_exceptions=True)

    def present(self) -> Mapping[int, int]:
        """Return nothing; see Target."""
        return {}

    async def generated_tokens(self) -> float:
        """Return the engine's counter; nan if the target has no metrics URL."""
        if not self._spec.metrics_url:
            return float("nan")
        return await asyncio.to_thread(read_counter, self._spec.metrics_url, GENERATED_TOKENS)

    async def __aenter__(self) -> Self:
        """Return itself, able to connect."""
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S)
        self._http = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=_LONGEST_LINE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()


class _HttpEditor(CallEditor):
    """One editor."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        hosts: Sequence[str],
        session: TypedSession,
        dialect: Dialect,
        settings: ClientSettings,
        body: dict[str, Any],
    ) -> None:
        super().__init__(settings)
        self._http = http
        self._hosts = hosts
        self._session = session
        self._dialect = dialect
        self._body = body
        self._shift = 0

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        body = self._dialect.body(record.request, self._session.language_id, max_tokens) | self._body
        host = self._hosts[(self._session.region + self._shift) % len(self._hosts)]
        url, data = f"http://{host}{self._dialect.path}", json.dumps(body).encode()
        try:
            try:
                await self._post(url, data, record)
            except aiohttp.ClientConnectionError:  # the server closed an idle connection just as the request came
                await self._post(url, data, record)
        except aiohttp.ClientError as error:
            record.end(Outcome.ERROR, f"{type(error).__name__}: {error}")
        except (ValueError, KeyError, TypeError) as error:
            record.end(Outcome.ERROR, f"an answer that can't be read: {type(error).__name__}: {error}")

    def disconnect(self, host_shift: int | None) -> None:
        """See CallEditor. Idle connections are kept, since they belong to no session."""
        if host_shift is not None:
            self._shift = host_shift

    async def _post(self, url: str, body: bytes, record: Record) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._http.post(url, data=body, headers=headers) as answer:
            if not answer.ok:
                record.end(Outcome.ERROR, await answer.text())
                return
            async for line in answer.content:
                self._dialect.take(line, record)
        record.end_whole()
