"""Sessions that replicas count together."""

import asyncio

from completion_server.limits.shares import NUM_KEPT, SESSIONS_INTERVAL_S
from tests.support.shared_limits import FakeReplicas, Limits
from tests.unit.limits.test_shared_rates import in_virtual_time


async def opened_everywhere(replicas: FakeReplicas, rounds: int = 30) -> list[int]:
    """Open as many sessions as all replicas allow, one after another."""
    opened = [0] * replicas.num
    for _ in range(rounds):
        for number in range(replicas.num):
            opened[number] += replicas[number].open_sessions("u", 1)
        await asyncio.sleep(1.1)
    return opened


@in_virtual_time
async def test_a_new_key_opens_an_equal_part_at_once_and_the_rest_after_a_round_trip() -> None:
    replicas = await FakeReplicas(limits=Limits(max_sessions=64)).start()
    assert 21 <= replicas[0].open_sessions("u", 64) <= 22
    assert replicas[0].sessions.more_in_s("u") == 1.0
    await asyncio.sleep(0.1)
    assert replicas[0].open_sessions("u", 64) >= 42
    assert replicas[0].sessions.is_full("u")
    assert replicas[0].sessions.more_in_s("u") is None, "all that are allowed"
    assert not replicas[0].sessions.is_full("another")


@in_virtual_time
async def test_replicas_together_open_the_limit() -> None:
    replicas = await FakeReplicas().start()
    opened = await opened_everywhere(replicas)
    assert 12 <= sum(opened) <= 12 + 3
    assert min(opened) > 0


@in_virtual_time
async def test_a_closed_session_may_be_opened_elsewhere() -> None:
    replicas = await FakeReplicas().start()
    replicas[0].open_sessions("u", 100)
    await asyncio.sleep(1.1)
    assert replicas[0].open_sessions("u", 100) > 0
    replicas[1].open_sessions("u", 1)
    for _ in range(6):
        replicas[0].sessions.leave("u")
    await asyncio.sleep(SESSIONS_INTERVAL_S)
    assert replicas[1].sessions.num_open("u") + sum(await opened_everywhere(replicas)) >= 6


@in_virtual_time
async def test_the_last_session_ends_the_share() -> None:
    replicas = await FakeReplicas().start()
    assert replicas[0].open_sessions("u", 5) == 4
    await asyncio.sleep(0.1)
    assert set(replicas.scripts.shares["sessions:u"]) == {"replica-0"}
    for _ in range(4):
        replicas[0].sessions.leave("u")
    await asyncio.sleep(1.1)
    assert len(replicas[0].sessions) == 0
    assert replicas.scripts.shares["sessions:u"] == {}


@in_virtual_time
async def test_a_session_that_is_closed_at_once_costs_redis_nothing() -> None:
    replicas = await FakeReplicas().start()
    replicas[0].open_sessions("u", 1)
    replicas[0].sessions.leave("u")
    await asyncio.sleep(2 * SESSIONS_INTERVAL_S)
    assert len(replicas[0].sessions) == 0
    assert "sessions:u" not in replicas.scripts.shares


@in_virtual_time
async def test_sessions_are_reported_while_they_are_open_and_forgotten_with_their_replica() -> None:
    replicas = await FakeReplicas().start()
    for number in (0, 1):
        replicas[number].open_sessions("u", 4)
    await asyncio.sleep(90.0)
    replicas[1].store.is_cut = True
    await asyncio.sleep((NUM_KEPT + 1) * SESSIONS_INTERVAL_S)
    opened = 4
    for _ in range(20):
        opened += replicas[0].open_sessions("u", 100)
        await asyncio.sleep(1.1)
    assert opened == 12


@in_virtual_time
async def test_a_replica_that_is_cut_off_keeps_its_part() -> None:
    replicas = await FakeReplicas().start()
    replicas[0].store.is_cut = True
    await asyncio.sleep(5.0)
    opened = await opened_everywhere(replicas)
    assert opened[0] == 4
    assert sum(opened) <= 12 + 4 + 3
    replicas[0].store.is_cut = False
    replicas[0].sessions.is_full("u")
    await asyncio.sleep(2.0)
    assert replicas.scripts.shares["sessions:u"]["replica-0"][3] == 4


@in_virtual_time
async def test_a_limit_of_one_allows_a_move_to_another_replica() -> None:
    replicas = await FakeReplicas(limits=Limits(max_sessions=1)).start()
    assert replicas[0].open_sessions("u", 5) == 1
    assert replicas[0].sessions.more_in_s("u") is None
    await asyncio.sleep(0.5)
    replicas[0].sessions.leave("u")
    assert replicas[1].open_sessions("u", 5) == 1
