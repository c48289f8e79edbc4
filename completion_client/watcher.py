"""Watches the endpoints of a process: first as a race, then with a health check of each now and then."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from completion_client.choice import Availability, Health
from completion_client.connections import Connections
from completion_client.distances import Distances
from completion_client.endpoint import Endpoint
from completion_client.errors import ConnectionLostError
from completion_client.health import CheckResult
from completion_client.region_settings import RegionSettings

_log = logging.getLogger(__name__)

_FIRST_CHECKS = 3
"""Checks in quick succession at the start, since a first round trip is often too long."""
_FIRST_PAUSE_S = 0.1
_RACE_TRIPS = 4
"""Round trips from opening a connection to the first answer: TCP, TLS and the check, and one to spare."""
_MS_PER_S = 1000


@dataclass(slots=True)
class _Watch:
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    num_checks: int = 0
    num_failures: int = 0
    is_heard: bool = False
    """Whether a request was answered since the last check."""


class Watcher:
    """Checks each endpoint now and then, and at once when it is suspected."""

    def __init__(
        self,
        connections: Connections,
        distances: Distances,
        availability: Availability,
        settings: RegionSettings,
        now: Callable[[], float],
        jitter: random.Random,
    ) -> None:
        """Begin with `run`."""
        self._connections = connections
        self._distances = distances
        self._availability = availability
        self._settings = settings
        self._now = now
        self._jitter = jitter
        self._watches = {each: _Watch() for each in distances.endpoints}
        self.race_over = asyncio.Event()
        """Set when the nearest endpoint is known, or no answer is to be waited for any more."""

    async def run(self) -> None:
        """Watch all endpoints until this is cancelled."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._settings.race_s, self.race_over.set)
        try:
            async with asyncio.TaskGroup() as group:
                for endpoint in self._watches:
                    group.create_task(self._watch(endpoint, loop.time()))
        finally:
            timer.cancel()
            self.race_over.set()

    def measured(self, endpoint: Endpoint, round_trip_s: float) -> None:
        """Note the round trip of a request that was answered."""
        self._watches[endpoint].is_heard = True
        self._distances.measured(endpoint, round_trip_s, self._now())

    def check_now(self, endpoint: Endpoint) -> None:
        """Check an endpoint without a suspicion against it."""
        self._watches[endpoint].wake.set()

    def suspect(self, endpoint: Endpoint, why: str) -> None:
        """Note that a connection or a call was lost: check the endpoint now."""
        if self._availability.suspected(endpoint, why):
            self.check_now(endpoint)

    async def _watch(self, endpoint: Endpoint, started_s: float) -> None:
        watch = self._watches[endpoint]
        is_heard = False
        while True:
            watch.wake.clear()
            watch.is_heard = False
            try:
                self._note(endpoint, watch, CheckResult(None) if is_heard else await self._check(endpoint))
            except Exception:  # noqa: BLE001 -- an error of this program ends no watch, and is not the server's
                watch.num_failures += 1
                _log.exception("%s: the health check failed in the client", endpoint.address)
            if not self.race_over.is_set():
                self._end_race(started_s)
            try:
                async with asyncio.timeout(self._pause_s(watch)):
                    await watch.wake.wait()
                is_heard = False
            except TimeoutError:  # an answered request counts as a good check
                is_usable = self._availability.health(endpoint) is Health.USABLE
                is_heard = watch.is_heard and is_usable and not watch.wake.is_set()

    async def _check(self, endpoint: Endpoint) -> CheckResult:
        try:
            while True:
                connection = self._connections.get(endpoint)
                result = await connection.check(self._settings.check_timeout_s)
                if result.round_trip_s is not None:
                    return result
                if self._connections.holds(connection):
                    self._connections.drop_lost(connection)  # the next try begins anew, without gRPC's own back-off
                    return result
        except ConnectionLostError as error:
            return CheckResult(None, str(error.__cause__ or error))

    def _note(self, endpoint: Endpoint, watch: _Watch, result: CheckResult) -> None:
        watch.num_checks += 1
        if result.problem:
            watch.num_failures += 1
            if self._availability.failed(endpoint, result.problem):
                _log.info("%s is not used: %s", endpoint.address, result.problem)
            return
        watch.num_failures = 0
        now_s = self._now()
        if self._availability.answered(endpoint, now_s):
            _log.info("%s is used again", endpoint.address)
        if result.round_trip_s is not None:
            self._distances.measured(endpoint, result.round_trip_s, now_s)
        self._connections.warm(endpoint)

    def _pause_s(self, watch: _Watch) -> float:
        settings = self._settings
        pause_s = settings.check_interval_s
        if watch.num_failures:
            pause_s = min(pause_s, settings.recheck_s * 2.0 ** min(watch.num_failures - 1, 32))
        elif watch.num_checks < _FIRST_CHECKS:
            pause_s = min(pause_s, _FIRST_PAUSE_S)
        return pause_s * self._jitter.uniform(0.5, 1.5)

    def _end_race(self, started_s: float) -> None:
        """End the race some time after the first good answer: others that are as near must have answered by then."""
        loop, watches, settings = asyncio.get_running_loop(), self._watches.values(), self._settings
        if all(each.num_checks for each in watches):
            self.race_over.set()
        elif sum(each.num_checks > each.num_failures for each in watches) == 1:
            margin_s = settings.tier_margin_share * (loop.time() - started_s)
            grace_s = max(_RACE_TRIPS * settings.tier_margin_ms / _MS_PER_S, margin_s)
            loop.call_later(grace_s, self.race_over.set)
