"""Several servers of which each editor uses the nearest that works, by the client library's measurements.

All editors of a process share the measurements, the connections and what is known of failures.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from completion_client import (
    CompletionClient,
    Health,
    Regions,
    ReplicaStream,
)
from completion_client.tls_faults import explain_tls
from loadtest.targets import ClientSettings, TargetError, TargetSpec, token_of
from loadtest.targets.editor import RequestFactory
from loadtest.targets.streams import StreamEditor, StreamLog
from loadtest.traffic.typed import Trace, TypedSession


class NearestHosts:
    """The servers, as all editors of this process see them."""

    def __init__(self, spec: TargetSpec, settings: ClientSettings, log: StreamLog) -> None:
        """Measure nothing yet; lost streams are added to `log`."""
        self._name = spec.name
        self._numbers = {each: number for number, each in enumerate(spec.endpoints)}
        self._tokens = spec.credentials.tokens()
        self._settings = settings
        self._log = log
        self._regions: Regions | None = None
        self._streams: list[ReplicaStream] = []
        self._clients: list[CompletionClient] = []

    async def connect(self, trace: Trace) -> None:
        """Find the nearest server. Raises TargetError if none serves."""
        if self._regions is None:
            share = trace.sessions[0].number if trace.sessions else 0  # each worker process checks at other times
            self._regions = Regions(self._numbers, seed=f"{trace.seed}/{share}")
        await self._close_clients()
        self._streams.clear()
        await self._regions.ready()
        states = self._regions.states()
        if not any(each.health is Health.USABLE and each.round_trip_ms is not None for each in states):
            faults = [await asyncio.to_thread(explain_tls, each.endpoint) or each.why or "no answer" for each in states]
            reasons = "; ".join(f"{each.endpoint.address}: {fault}" for each, fault in zip(states, faults, strict=True))
            raise TargetError(f"{self._name}: no server can be used: {reasons}")

    def editor(self, session: TypedSession, factory: RequestFactory, seed: str) -> StreamEditor:
        """Return the editor of a session, wherever it is. It does not know regions, only round trips."""
        assert self._regions is not None, "connect comes first"
        client = CompletionClient(self._regions, user=factory.user, token=token_of(self._tokens, session.number))
        self._clients.append(client)
        editor = StreamEditor(client, factory, self._settings, self._log, seed, hosts=self._numbers)
        self._streams.append(editor.stream)
        return editor

    def present(self) -> Mapping[int, int]:
        """Return the number of editors at each server; one without a connection counts at its last server."""
        return Counter(self._numbers[stream.endpoint] for stream in self._streams)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._close_clients()
        if self._regions is not None:
            await self._regions.aclose()

    async def _close_clients(self) -> None:
        """Close the clients of the last run; their connections are for the editors of the next one."""
        for client in self._clients:
            await client.aclose()
        self._clients.clear()
