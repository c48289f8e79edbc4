"""What all users of a process share about its endpoints: distances, health and connections."""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from completion_client.choice import Availability, Health
from completion_client.connections import Connection, Connections, TlsFiles
from completion_client.distances import Distances
from completion_client.endpoint import ChannelOptions, Endpoint, EndpointError, parse_endpoints
from completion_client.errors import ConnectionLostError
from completion_client.health import connects_within
from completion_client.region_settings import RegionSettings
from completion_client.silence import SilenceRecord
from completion_client.watcher import Watcher

_log = logging.getLogger(__name__)

_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What a process knows about one of its endpoints."""

    endpoint: Endpoint
    tier: int
    """0 is the nearest region."""
    round_trip_ms: float | None
    """The shortest of late; None if it was not measured."""
    health: Health
    why: str
    """Why it is not usable; "" if it is."""


class Regions:
    """The endpoints of one or many regions, for any number of users in one event loop.

    One `Regions` measures, checks and connects for all of them; each user has a `CompletionClient(regions, user=...)`.
    Use it as an asynchronous context manager.
    """

    def __init__(
        self,
        endpoints: Endpoint | Iterable[Endpoint] | str,
        *,
        settings: RegionSettings | None = None,
        seed: str | None = None,
        now: Callable[[], float] = time.monotonic,
        channel_options: ChannelOptions = (),
    ) -> None:
        """Use the servers at `endpoints`, such as "a:1,b:2,c:3". A `seed` makes the draws of times repeatable.

        `now` is a monotonic clock in seconds, for the decisions; waits are those of the event loop. `channel_options`
        are gRPC's, besides those of this library.

        Raises:
            EndpointError: there is no endpoint, or one is there twice.

        """
        if isinstance(endpoints, Endpoint):
            endpoints = [endpoints]
        found = parse_endpoints(endpoints) if isinstance(endpoints, str) else tuple(endpoints)
        if not found or len({each.address for each in found}) < len(found):
            raise EndpointError("address", f"at least one endpoint is needed, each once, got {len(found)}")
        seed = seed or uuid.uuid4().hex
        self.endpoints = found
        self.settings = settings = settings or RegionSettings()
        self.now = now
        self.distances = Distances(found, settings)
        self.availability = Availability(found, settings.return_spread_s, seed)
        self.connections = Connections(channel_options, settings.users_per_connection)
        self._watcher = Watcher(self.connections, self.distances, self.availability, settings, now, random.Random(seed))
        self._tls_files = TlsFiles(found)
        self._silences = {each: SilenceRecord() for each in found}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Begin to measure."""
        self.start_nowait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.aclose()

    def start_nowait(self) -> None:
        """Begin to measure, unless that has begun. A single endpoint is not measured: there is no choice."""
        if self._tasks:
            return
        if len(self.endpoints) > 1:
            self._tasks.append(asyncio.create_task(self._watcher.run()))
        if self._tls_files:
            self._tasks.append(asyncio.create_task(self._watch_tls_files()))
        for task in self._tasks:
            task.add_done_callback(_log_error)

    async def aclose(self) -> None:
        """Measure no longer and drop the connections; open calls go on until they end."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        self.connections.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def ready(self, left_s: float | None = None) -> None:
        """Wait until the nearest endpoint is known, at most `race_s`, and a share of what a request has left."""
        self.start_nowait()
        if len(self.endpoints) == 1 or self._watcher.race_over.is_set():
            return
        try:
            async with asyncio.timeout(None if left_s is None else self.settings.silence_share * left_s):
                await self._watcher.race_over.wait()
        except TimeoutError:
            return  # each endpoint is as good as the others then

    def states(self) -> list[EndpointState]:
        """Return what is known about each endpoint, the nearest tier first."""
        return [self.state(each) for tier in self.distances.tiers for each in tier]

    def state(self, endpoint: Endpoint) -> EndpointState:
        """Return what is known about an endpoint."""
        round_trip_s = self.distances.round_trip_s(endpoint)
        return EndpointState(
            endpoint,
            self.distances.tier(endpoint),
            None if round_trip_s is None else round_trip_s * _MS_PER_S,
            self.availability.health(endpoint),
            self.availability.why(endpoint),
        )

    async def connected(self, endpoint: Endpoint, number: int, within_s: float) -> Connection:
        """Return a connection when it is connected.

        Raises:
            ConnectionLostError: the server refuses it or takes longer than `within_s`, or a PEM file can't be read.

        """
        connection = self.connections.get(endpoint, number)
        if connection.is_ready:
            return connection
        is_connected = await connects_within(connection.channel, within_s)
        if is_connected:
            return connection
        if is_connected is not None or len(self.endpoints) == 1:
            self.connections.drop(connection)  # the next try begins anew, without gRPC's own back-off
        msg = f"no connection to {endpoint.address}"
        self._suspect(endpoint, msg)
        raise ConnectionLostError(msg)

    async def alive_at_s(self, connection: Connection, since_s: float, within_s: float) -> float | None:
        """Return the time of the server's last message on a connection.

        None if there is none after `since_s`, a time of the loop, and a health check is not answered within `within_s`.
        A single late answer moves one request, not all users. They leave until a patient check has ended if
        `silent_requests` were silent one after another.
        """
        if connection.is_silent:
            return None
        if connection.heard_at_s > since_s:
            return connection.heard_at_s
        asked = connection
        if not self.connections.holds(connection):  # it gets no new call
            try:
                asked = self.connections.get(connection.endpoint)
            except ConnectionLostError:  # its PEM files are being replaced
                _log.debug("%s is asked on its old connection", connection.endpoint.address)
        await asked.check(within_s)
        heard_at_s = max(connection.heard_at_s, asked.heard_at_s)
        if heard_at_s > since_s:
            return heard_at_s
        self._note_silent(connection, since_s)
        return None

    def measured(self, connection: Connection, round_trip_s: float) -> None:
        """Note the round trip of a request, without the server's own time."""
        self._watcher.measured(connection.endpoint, round_trip_s)

    def lost(self, connection: Connection, why: str) -> None:
        """Note that a call or stream was lost: check the server before it is used again."""
        if not connection.is_ready:
            self.connections.drop(connection)
        self._suspect(connection.endpoint, why)

    def _note_silent(self, connection: Connection, since_s: float) -> None:
        """Note a request to which nothing came: check its endpoint, and leave it or the connection if others say so."""
        endpoint, now_s = connection.endpoint, asyncio.get_running_loop().time()
        heard_at_s = max(connection.heard_at_s, self.connections.heard_at_s(endpoint))
        connection.silence.note(since_s, connection.heard_at_s, now_s)
        is_long = now_s - connection.silence.began_at_s > self.settings.silence_max_s
        if is_long and connection.silence.num_silent >= self.settings.silent_requests:
            connection.is_silent = True
            self.connections.drop(connection)
        silence = self._silences[endpoint]
        if heard_at_s <= since_s:
            silence.note(since_s, heard_at_s, now_s)
            if silence.num_silent >= self.settings.silent_requests:
                self._suspect(endpoint, "it sends nothing")
                return
        self._watcher.check_now(endpoint)

    def _suspect(self, endpoint: Endpoint, why: str) -> None:
        if len(self.endpoints) > 1:
            self._watcher.suspect(endpoint, why)

    async def _watch_tls_files(self) -> None:
        while True:
            await asyncio.sleep(self.settings.certificate_interval_s * random.uniform(0.5, 1.5))
            await self._tls_files.renew(self.connections, self.settings.check_timeout_s)


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("the endpoints are watched no longer", exc_info=error)
