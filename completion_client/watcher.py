"""Watches one endpoint of a process: whether it can be used, by a health check now and then.

States, which all users of a process share:

    USABLE  -- a health check has no answer, or NOT_SERVING -->  FAILED
    FAILED  -- a health check is answered with SERVING ------->  USABLE    (users return one after another)

Only a check ends a failure: a server that drains still answers the requests that it has accepted.
"""

import asyncio
import hashlib
import logging
import math
import random
from collections.abc import Callable
from enum import Enum

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
_HASH_BYTES = 8


class Health(Enum):
    """The state of an endpoint as this process sees it."""

    USABLE = "usable"
    FAILED = "failed"


class Watcher:
    """Checks one endpoint now and then, and at once when a request fails there."""

    def __init__(
        self,
        endpoint: Endpoint,
        connections: Connections,
        distances: Distances,
        settings: RegionSettings,
        seed: str,
        now: Callable[[], float],
    ) -> None:
        """Begin with `run`. Times of checks and of users' returns follow from `seed`."""
        self.endpoint = endpoint
        self.health = Health.USABLE
        self.why = ""
        """Why it is not usable; "" if it is."""
        self.num_checks = self.num_failures = 0
        """Those after the last success, of the failures."""
        self._came_back_at_s = -math.inf
        self._num_returns = 0
        self._connections = connections
        self._distances = distances
        self._settings = settings
        self._seed = seed
        self._random = random.Random(f"{seed}/{endpoint.address}")
        self._now = now
        self._wake = asyncio.Event()
        self._is_heard = False
        """Whether a request was answered since the last check."""

    def measured(self, round_trip_s: float) -> None:
        """Note the round trip of a request that was answered."""
        self._is_heard = True
        self._distances.measured(self.endpoint, round_trip_s, self._now())

    def check_now(self) -> None:
        """Check the endpoint at once."""
        self._wake.set()

    def usable_at_s(self, user: str) -> float:
        """Return from when on a user uses the endpoint; infinity while it has failed.

        Each return draws a new order of the users.
        """
        if self.health is Health.FAILED:
            return math.inf
        share = hash_of(self._seed, self.endpoint.address, user, str(self._num_returns)) / 2.0 ** (8 * _HASH_BYTES)
        return self._came_back_at_s + self._settings.return_spread_s * share

    async def run(self, on_checked: Callable[[], object]) -> None:
        """Watch until this is cancelled; `on_checked` is called after each check."""
        is_heard = False
        while True:
            self._wake.clear()
            self._is_heard = False
            self.note(CheckResult(None) if is_heard else await self._check())
            on_checked()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
                is_heard = False
            except TimeoutError:  # an answered request counts as a good check
                is_heard = self._is_heard and self.health is Health.USABLE and not self._wake.is_set()

    def note(self, result: CheckResult) -> None:
        """Note the result of a health check, or without a round trip and a problem that a request was answered."""
        self.num_checks += 1
        if result.problem:
            self.num_failures += 1
            if self.health is Health.USABLE:
                _log.info("%s is not used: %s", self.endpoint.address, result.problem)
            self.health, self.why = Health.FAILED, result.problem
            return
        now_s = self._now()
        if self.health is Health.FAILED:
            _log.info("%s is used again", self.endpoint.address)
            self._came_back_at_s = now_s
            self._num_returns += 1
        self.health, self.why, self.num_failures = Health.USABLE, "", 0
        if result.round_trip_s is not None:
            self._distances.measured(self.endpoint, result.round_trip_s, now_s)

    async def _check(self) -> CheckResult:
        try:
            result = await self._connections.get(self.endpoint).check(self._settings.check_timeout_s)
        except ConnectionLostError as error:
            return CheckResult(None, str(error.__cause__ or error))
        if result.round_trip_s is None:
            self._connections.drop_all(self.endpoint)  # the next try begins anew, without gRPC's own back-off
        return result

    def _pause_s(self) -> float:
        settings = self._settings
        pause_s = settings.check_interval_s
        if self.num_failures:
            pause_s = min(pause_s, settings.recheck_s * 2.0 ** min(self.num_failures - 1, 32))
        elif self.num_checks < _FIRST_CHECKS:
            pause_s = min(pause_s, _FIRST_PAUSE_S)
        return pause_s * self._random.uniform(0.5, 1.5)


def hash_of(*names: str) -> int:
    """Return 64 bits that follow from names alone, the same in every process and on every machine."""
    key = "\x00".join(names).encode()  # names can't contain it
    return int.from_bytes(hashlib.blake2b(key, digest_size=_HASH_BYTES).digest(), "big")
