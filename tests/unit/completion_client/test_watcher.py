"""When endpoints are checked, in virtual time: checks and clocks are a test's."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from completion_client import Endpoint, RegionSettings
from completion_client.regions.availability import Availability
from completion_client.regions.checks import CheckResult
from completion_client.regions.connections import Connections
from completion_client.regions.distances import Distances
from completion_client.regions.watcher import Watcher
from loadtest.simulation import virtual_time

BUSY, QUIET = ENDPOINTS = Endpoint("busy:1"), Endpoint("quiet:1")
SETTINGS = RegionSettings(check_interval_s=15.0)


@dataclass
class _Connection:
    endpoint: Endpoint
    checked: Callable[[Endpoint], object]

    async def check(self, _timeout_s: float) -> CheckResult:
        self.checked(self.endpoint)
        return CheckResult(0.01)


@dataclass
class CheckedConnections(Connections):
    """Answers each check at once, and notes when it came."""

    checked_at_s: dict[Endpoint, list[float]] = field(default_factory=lambda: {each: [] for each in ENDPOINTS})

    def get(self, endpoint: Endpoint, number: int = 0) -> _Connection:  # type: ignore[override]
        return _Connection(endpoint, lambda each: self.checked_at_s[each].append(asyncio.get_running_loop().time()))


async def watched(connections: CheckedConnections, act: Callable[[Watcher], None], until_s: float) -> None:
    """Watch for a time; `act` is called a hundred times a second."""
    now = asyncio.get_running_loop().time
    availability = Availability(ENDPOINTS, 30.0, "seed")
    distances = Distances(ENDPOINTS, SETTINGS)
    watcher = Watcher(
        connections, distances, availability, SETTINGS, now, lambda _endpoint: None, random.Random("seed")
    )
    watching = asyncio.create_task(watcher.run())
    while now() < until_s:
        await asyncio.sleep(0.01)
        act(watcher)
    watching.cancel()


def test_the_first_checks_of_a_quiet_endpoint_are_quick_and_the_later_ones_are_not() -> None:
    connections = CheckedConnections()
    virtual_time.run(watched(connections, lambda _watcher: None, 60.0))
    times_s = connections.checked_at_s[QUIET]
    assert times_s[2] < 0.4
    assert times_s[3] > 7.0
    assert 4 <= len(times_s) <= 11


def test_answered_requests_count_as_checks_also_at_the_start() -> None:
    """The endpoint is checked at the start, and next a whole interval after its last request."""
    last_request_s = 2.0
    connections = CheckedConnections()

    def ask(watcher: Watcher) -> None:
        if asyncio.get_running_loop().time() < last_request_s:
            watcher.measured(BUSY, 0.01)

    virtual_time.run(watched(connections, ask, 60.0))
    first_s, second_s, *_ = connections.checked_at_s[BUSY]
    assert first_s == pytest.approx(0.0)
    assert second_s - last_request_s > 5.0


def test_a_suspicion_is_checked_at_once_though_requests_are_answered() -> None:
    connections = CheckedConnections()

    def ask(watcher: Watcher) -> None:
        watcher.measured(BUSY, 0.01)
        if asyncio.get_running_loop().time() == pytest.approx(20.0):
            watcher.suspect(BUSY, "a stream was lost")

    virtual_time.run(watched(connections, ask, 60.0))
    assert connections.checked_at_s[BUSY] == pytest.approx([0.0, 20.0])
