"""Several servers of which each editor uses the nearest that works, by the client library's measurements.

All editors of a process share the measurements, the connections and what is known of failures.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from completion_client import (
    CompletionClient,
    Endpoint,
    EndpointError,
    Health,
    Regions,
    RegionSettings,
    ReplicaStream,
)
from completion_client.tls_faults import explain_tls
from loadtest.targets import ClientSettings, TargetError, TargetSpec, token_of
from loadtest.targets.editor import RequestFactory, StreamEditor, StreamLog, session_settings
from loadtest.targets.record import Record
from loadtest.traffic.typed import Trace, TypedSession


class NearestHosts:
    """The servers, as all editors of this process see them."""

    def __init__(self, spec: TargetSpec, settings: ClientSettings, log: StreamLog) -> None:
        """Measure nothing yet; lost streams are added to `log`.

        Raises TargetError if one of its options is not valid.
        """
        self._name = spec.name
        self._region_settings = _region_settings(spec)
        self._numbers = {each: number for number, each in enumerate(spec.endpoints)}
        self._tokens = spec.credentials.tokens()
        self._settings = settings
        self._log = log
        self._regions: Regions | None = None
        self._streams: list[ReplicaStream] = []

    async def connect(self, trace: Trace) -> None:
        """Find the nearest server. Raises TargetError if none serves."""
        if self._regions is None:
            share = trace.sessions[0].number if trace.sessions else 0  # each worker process checks at other times
            self._regions = Regions(self._numbers, settings=self._region_settings, seed=f"{trace.seed}/{share}")
        self._streams.clear()
        await self._regions.ready()
        states = self._regions.states()
        if not any(each.health is Health.USABLE and each.round_trip_ms is not None for each in states):
            faults = [await asyncio.to_thread(explain_tls, each.endpoint) or each.why or "no answer" for each in states]
            reasons = "; ".join(f"{each.endpoint.address}: {fault}" for each, fault in zip(states, faults, strict=True))
            raise TargetError(f"{self._name}: no server can be used: {reasons}")

    def editor(self, session: TypedSession, factory: RequestFactory, seed: str) -> "NearestEditor":
        """Return the editor of a session, wherever it is."""
        assert self._regions is not None, "connect comes first"
        token = token_of(self._tokens, session.number)
        client = CompletionClient(self._regions, user=factory.user, token=token)
        stream = client.stream(
            metadata=factory.metadata, settings=session_settings(factory, self._settings, seed), listener=self._log
        )
        stream.start_nowait()
        self._streams.append(stream)
        return NearestEditor(client, stream, factory, self._settings, self._numbers)

    def present(self) -> Mapping[int, int]:
        """Return the number of editors at each server; one without a connection counts at its last server."""
        return Counter(self._numbers[stream.endpoint] for stream in self._streams)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._regions is not None:
            await self._regions.aclose()


class NearestEditor(StreamEditor):
    """A session that goes to the nearest server that works. It does not know regions, only round trips."""

    def __init__(
        self,
        client: CompletionClient,
        stream: ReplicaStream,
        factory: RequestFactory,
        settings: ClientSettings,
        numbers: Mapping[Endpoint, int],
    ) -> None:
        """Send requests on a stream of `client` that has begun; `numbers` are those of the hosts."""
        super().__init__(stream, factory, settings)
        self._client = client
        self._routes = stream
        self._numbers = numbers

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor."""
        super().send_nowait(record, max_tokens)
        self.note_route(record)

    def note_route(self, record: Record) -> None:
        """See StreamEditor."""
        route = self._routes.route(record.request.sequence)
        if route is not None:
            record.routed(self._numbers[route.endpoint], route.num_sent)

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """Drop the connection. A change of host is ignored: this editor moves when a server is really lost."""
        if host_shift is None:
            self.stream.drop_nowait()

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """See StreamEditor. The connections are for the editors of the next run then."""
        return [*super().close_nowait(), asyncio.create_task(self._client.aclose())]


def _region_settings(spec: TargetSpec) -> RegionSettings:
    text = spec.options.get("return_spread_s")
    if text is None:
        return RegionSettings()
    try:
        return RegionSettings(return_spread_s=float(text))
    except EndpointError as error:
        msg = f"{spec.name}: {error}"
    except ValueError:
        msg = f"{spec.name}: return_spread_s must be a number of seconds, got {text!r}"
    raise TargetError(msg)
