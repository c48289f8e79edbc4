"""What all users of a process share about its endpoints: distances, health and connections."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from completion_client.connections import Connection, Connections, tls_file_states
from completion_client.distances import Distances
from completion_client.endpoint import ChannelOptions, Endpoint, EndpointError, parse_endpoints
from completion_client.errors import ConnectionLostError
from completion_client.health import connect, within
from completion_client.region_settings import RegionSettings
from completion_client.watcher import Health, Watcher

_RACE_TRIPS = 4
"""Round trips from opening a connection to the first answer: TCP, TLS and the check, and one to spare."""
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
        are gRPC's, besides those of this library. Raises EndpointError if there is no endpoint, or one is there twice.
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
        self.connections = Connections(channel_options, settings.users_per_connection)
        self.watchers = {each: Watcher(each, self.connections, self.distances, settings, seed, now) for each in found}
        self._race_over = asyncio.Event()
        self._tls_files = {each: tls_file_states(each) for each in found if each.is_encrypted}
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
            self._tasks.append(asyncio.create_task(self._watch()))
        if self._tls_files:
            self._tasks.append(asyncio.create_task(self._watch_tls_files()))

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
        if len(self.endpoints) == 1:
            return
        with suppress(TimeoutError):  # each endpoint is as good as the others then
            async with asyncio.timeout(None if left_s is None else self.settings.silence_share * left_s):
                await self._race_over.wait()

    def states(self) -> list[EndpointState]:
        """Return what is known about each endpoint, the nearest tier first."""
        return [self.state(each) for tier in self.distances.tiers for each in tier]

    def state(self, endpoint: Endpoint) -> EndpointState:
        """Return what is known about an endpoint."""
        round_trip_s, watcher = self.distances.round_trip_s(endpoint), self.watchers[endpoint]
        round_trip_ms = None if round_trip_s is None else round_trip_s * _MS_PER_S
        return EndpointState(endpoint, self.distances.tier(endpoint), round_trip_ms, watcher.health, watcher.why)

    async def connected(self, endpoint: Endpoint, number: int, within_s: float) -> Connection:
        """Return a connection when it is connected.

        Raises ConnectionLostError if the server refuses it or takes too long, or a PEM file can't be read.
        """
        connection = self.connections.get(endpoint, number)
        if connection.is_ready:
            return connection
        is_connected = await within(within_s, connect(connection.channel))
        if is_connected:
            return connection
        if is_connected is not None or len(self.endpoints) == 1:
            self.connections.drop(connection)  # the next try begins anew, without gRPC's own back-off
        self.watchers[endpoint].check_now()
        msg = f"no connection to {endpoint.address}"
        raise ConnectionLostError(msg)

    async def alive_at_s(self, connection: Connection, since_s: float, within_s: float) -> float | None:
        """Return the time of the server's last message on a connection.

        None if there is none after `since_s`, a time of the loop, and a health check is not answered within `within_s`.
        The connection gets no new call then, and a check with more patience decides about the endpoint.
        """
        if connection.is_silent:
            return None
        if connection.heard_at_s > since_s:
            return connection.heard_at_s
        asked = connection
        if not self.connections.holds(connection):  # it gets no new call
            with suppress(ConnectionLostError):  # its PEM files are being replaced
                asked = self.connections.get(connection.endpoint)
        await asked.check(within_s)
        heard_at_s = max(connection.heard_at_s, asked.heard_at_s)
        if heard_at_s > since_s:
            return heard_at_s
        connection.is_silent = True
        self.connections.drop(connection)
        self.lost(connection)
        return None

    def lost(self, connection: Connection) -> None:
        """Note that a call or stream was lost: check the server before it is used again."""
        if not connection.is_ready:
            self.connections.drop(connection)
        self.watchers[connection.endpoint].check_now()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        timer, started_s = loop.call_later(self.settings.race_s, self._race_over.set), loop.time()
        try:
            async with asyncio.TaskGroup() as group:
                for each in self.watchers.values():
                    group.create_task(each.run(lambda: self._end_race(started_s)))
        finally:
            timer.cancel()
            self._race_over.set()

    def _end_race(self, started_s: float) -> None:
        """End the race some time after the first good answer: others that are as near must have answered by then."""
        loop, watchers = asyncio.get_running_loop(), self.watchers.values()
        if all(each.num_checks for each in watchers):
            self._race_over.set()
        elif sum(each.num_checks > each.num_failures for each in watchers) == 1:
            margin_ms, elapsed_s = _RACE_TRIPS * self.settings.tier_margin_ms, loop.time() - started_s
            grace_s = max(margin_ms / _MS_PER_S, self.settings.tier_margin_share * elapsed_s)
            loop.call_later(grace_s, self._race_over.set)

    async def _watch_tls_files(self) -> None:
        """Replace the connections to each endpoint with changed files."""
        while True:
            await asyncio.sleep(self.settings.certificate_interval_s * random.uniform(0.5, 1.5))
            for endpoint, seen in self._tls_files.items():
                now = tls_file_states(endpoint)
                if now and now != seen and await self.connections.replace(endpoint, self.settings.check_timeout_s):
                    self._tls_files[endpoint] = now
