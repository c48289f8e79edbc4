"""When servers are checked, when one counts as silent, and when it is given up, in virtual time."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from completion_client import Endpoint, EndpointError, RegionSettings
from completion_client.choice import Availability
from completion_client.connections import Connections
from completion_client.distances import Distances
from completion_client.health import CheckResult
from completion_client.silence import SilenceGuard, SilenceRecord
from completion_client.watcher import Watcher
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


class CheckedConnections(Connections):
    """Answers each check at once, and notes when it came."""

    def __init__(self) -> None:
        super().__init__()
        self.checked_at_s: dict[Endpoint, list[float]] = {each: [] for each in ENDPOINTS}

    def get(self, endpoint: Endpoint, number: int = 0) -> _Connection:  # type: ignore[override]
        return _Connection(endpoint, lambda each: self.checked_at_s[each].append(asyncio.get_running_loop().time()))


async def watched(connections: CheckedConnections, act: Callable[[Watcher], None], until_s: float) -> None:
    """Watch for a time; `act` is called a hundred times a second."""
    now = asyncio.get_running_loop().time
    availability = Availability(ENDPOINTS, 30.0, "seed")
    distances = Distances(ENDPOINTS, SETTINGS)
    watcher = Watcher(connections, distances, availability, SETTINGS, now, random.Random("seed"))
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


LIMIT_S = 1.0
WAIT_S = 5.0


def now_s() -> float:
    return round(asyncio.get_running_loop().time(), 6)


@dataclass
class Watched:
    """A guard whose server answers no question before `alive_from_s`, and what the guard said when.

    The server sends something to others at `sent_at_s`.
    """

    wait_s: float | None = WAIT_S
    alive_from_s: float = 1000.0
    sent_at_s: float = -1.0
    num_questions: int = 0
    said: list[tuple[str, float, float]] = field(default_factory=list)
    """The event, its time, and the length of the silence."""
    guard: SilenceGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = SilenceGuard(self._alive_at_s, self._on_silent, self._on_given_up)

    async def _alive_at_s(self, since_s: float, within_s: float) -> float | None:
        if self.sent_at_s > since_s:
            return self.sent_at_s
        self.num_questions += 1
        if now_s() >= self.alive_from_s:
            return asyncio.get_running_loop().time()
        await asyncio.sleep(within_s)
        return None

    def _on_silent(self) -> float | None:
        self.said.append(("silent", now_s(), LIMIT_S))
        return None if self.wait_s is None else now_s() + self.wait_s

    def _on_given_up(self, silence_s: float) -> None:
        self.said.append(("given up", now_s(), round(silence_s, 6)))


def said_by(watch: Callable[[Watched], Coroutine[Any, Any, None]], **fields: float | None) -> list[Any]:
    """Return what a guard says in a script, and in a minute after that."""

    async def run() -> Watched:
        watched = Watched(**fields)  # type: ignore[arg-type]
        watched.guard.expect_nowait(LIMIT_S)
        await watch(watched)
        await asyncio.sleep(60.0)
        return watched

    return virtual_time.run(run()).said


async def nothing_comes(_watched: Watched) -> None:
    pass


def test_a_silent_server_is_given_up_when_the_time_of_what_waits_is_over() -> None:
    assert said_by(nothing_comes) == [("silent", 1.0, 1.0), ("given up", 6.0, 6.0)]
    assert said_by(nothing_comes, wait_s=None) == [("silent", 1.0, 1.0)]


def test_the_limit_counts_from_what_others_heard_last() -> None:
    assert said_by(nothing_comes, sent_at_s=0.45, wait_s=None) == [("silent", 1.45, 1.0)]


def test_a_server_that_answers_a_question_is_not_silent_and_asked_less_and_less_often() -> None:
    async def is_slow(watched: Watched) -> None:
        await asyncio.sleep(8.0)
        watched.guard.stop_nowait()
        assert watched.num_questions == 4  # at 0.5, 1.5, 3.5 and 7.5 s

    assert said_by(is_slow, alive_from_s=0.5) == []


def test_a_server_that_goes_on_is_not_given_up_and_is_watched_again() -> None:
    async def goes_on_once(watched: Watched) -> None:
        await asyncio.sleep(3.0)
        assert watched.guard.is_silent
        watched.guard.heard_nowait()
        assert not watched.guard.is_silent

    assert said_by(goes_on_once) == [("silent", 1.0, 1.0), ("silent", 4.0, 1.0), ("given up", 9.0, 6.0)]


def test_nothing_is_due_after_the_end() -> None:
    async def ends_while_silent(watched: Watched) -> None:
        await asyncio.sleep(3.0)
        watched.guard.heard_nowait()
        watched.guard.stop_nowait()

    async def is_left_while_silent(watched: Watched) -> None:
        await asyncio.sleep(3.0)
        watched.guard.stop_nowait()
        assert watched.guard.is_silent
        await asyncio.sleep(3.0)
        watched.guard.heard_nowait()
        assert not watched.guard.is_silent

    for script in (ends_while_silent, is_left_while_silent):
        assert said_by(script) == [("silent", 1.0, 1.0)]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("return_spread_s", -1.0, "return_spread_s: must be 0 or more, got -1.0"),
        ("tier_margin_share", math.nan, "tier_margin_share: must be 0 or more, got nan"),
        ("check_interval_s", 0.0, "check_interval_s: must be 0.01 or more, got 0.0"),
        ("window_s", math.inf, "window_s: must be 0.1 or more, got inf"),
        ("silence_share", 1.5, "silence_share: must be from 0 to 1, got 1.5"),
        ("silence_min_s", 2.0, "silence_min_s: must be at most silence_max_s = 1, got 2"),
        ("users_per_connection", 0, "users_per_connection: must be 1 or more, got 0"),
        ("race_s", "2", "race_s: must be 0 or more, got '2'"),
    ],
)
def test_a_bad_setting_is_named_with_its_limit(name: str, value: object, message: str) -> None:
    with pytest.raises(EndpointError) as caught:
        RegionSettings(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_silence_is_a_share_of_the_time_that_is_left() -> None:
    settings = RegionSettings(silence_share=0.5, silence_min_s=0.1, silence_max_s=1.0)
    assert [settings.silence_s(left_s) for left_s in (None, 10.0, 0.6, 0.01)] == [1.0, 1.0, 0.3, 0.1]


def test_silent_requests_count_until_the_server_shows_life() -> None:
    record = SilenceRecord()
    record.note(1.0, 0.5, 1.2)
    record.note(1.1, 0.5, 1.3)
    assert (record.num_silent, record.began_at_s) == (2, 1.0)
    record.note(5.0, 4.0, 5.2)
    assert (record.num_silent, record.began_at_s) == (1, 5.0), "it was heard between them"
    record.note(4.9, -math.inf, 5.3)
    assert (record.num_silent, record.began_at_s) == (2, 4.9)
