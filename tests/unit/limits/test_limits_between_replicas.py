"""Rates and sessions that replicas share: what a replica may take with Redis, without it, and after it came back."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest

from completion_server.limits.shares import NUM_KEPT, RATE_INTERVAL_S, SESSIONS_INTERVAL_S
from loadtest.simulation import virtual_time
from tests.support.shared_limits import FakeReplicas, Limits


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine in virtual time."""

    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        virtual_time.run(main())

    return run


@in_virtual_time
async def test_a_first_request_is_decided_at_once_from_an_equal_part() -> None:
    replicas = await FakeReplicas().start()
    assert replicas[0].take("u", 100) == 13
    assert replicas[0].limiter.delay_s("u", replicas[0].clock.now()) > 0
    await asyncio.sleep(0.1)
    assert 26 <= replicas[0].take("u", 100) <= 30, "the rest of the burst, as nobody else is asked for"


@in_virtual_time
async def test_active_replicas_divide_the_rate_in_proportion_to_their_demand() -> None:
    replicas = await FakeReplicas().start()
    await replicas.offer(10.0, 60.0, [0, 1, 2])
    taken = await replicas.offer(20.0, 60.0, [0, 1, 2])
    assert sum(taken) == pytest.approx(400, rel=0.1)
    assert min(taken) > 0.8 * max(taken)
    for _ in range(1000):
        await asyncio.sleep(0.02)
        replicas[0].take("v", 1)
        for _each in range(4):
            replicas[1].take("v", 1)
    asked = [list(replicas.scripts.shares["requests:v"][f"replica-{number}"]) for number in (0, 1)]
    assert asked[1][2] / asked[0][2] == pytest.approx(4, rel=0.3)


@in_virtual_time
async def test_a_charge_beyond_the_share_is_paid_by_all_replicas() -> None:
    replicas = await FakeReplicas().start()
    replicas[0].limiter.charge("u", replicas[0].clock.now(), 200.0)
    assert sum(await replicas.offer(2.0, 100.0, [0, 1])) <= 13 + 20
    assert sum(await replicas.offer(3.0, 100.0, [0, 1])) == 0
    assert sum(await replicas.offer(9.0, 100.0, [0, 1])) > 0


@in_virtual_time
async def test_a_refund_is_given_back_to_all_replicas() -> None:
    replicas = await FakeReplicas().start()
    replicas[0].limiter.charge("u", replicas[0].clock.now(), 30.0)
    await asyncio.sleep(0.1)
    assert replicas.scripts.debts["requests:u"][1] == 30
    replicas[0].limiter.charge("u", replicas[0].clock.now(), -30.0)
    await asyncio.sleep(1.0)
    assert replicas.scripts.debts["requests:u"][1] == 0


@in_virtual_time
async def test_idle_keys_are_forgotten_and_cost_nothing() -> None:
    replicas = await FakeReplicas().start()
    for number in range(3):
        assert replicas[number].take("u", 1) == 1
        assert replicas[number].shared.num_shares == 1
    await asyncio.sleep(2 * RATE_INTERVAL_S)
    assert [each.shared.num_shares for each in replicas.replicas] == [0, 0, 0]
    assert replicas.scripts.shares["requests:u"] == {}
    num_commands = replicas.scripts.num_commands
    await asyncio.sleep(1.0)
    assert replicas.scripts.num_commands - num_commands == 6, "only two heartbeats of each"


@in_virtual_time
async def test_without_redis_the_last_share_stays() -> None:
    replicas = await FakeReplicas().start()
    await replicas.offer(10.0, 60.0, [0, 1, 2])
    for replica in replicas.replicas:
        replica.store.is_cut = True
    taken = await replicas.offer(30.0, 60.0, [0, 1, 2])
    assert not any(replica.shared.replicas.is_shared for replica in replicas.replicas)
    assert sum(taken) == pytest.approx(600, rel=0.1)
    assert min(taken) > 0.8 * max(taken)
    assert (await replicas.offer(30.0, 60.0, [0], "new"))[0] == pytest.approx(200 + 13, rel=0.05)


@in_virtual_time
async def test_a_replica_that_is_cut_off_adds_its_share() -> None:
    replicas = await FakeReplicas().start()
    await replicas.offer(10.0, 60.0, [0, 1, 2])
    replicas[0].store.is_cut = True
    await replicas.offer(NUM_KEPT * RATE_INTERVAL_S + 3.0, 60.0, [0, 1, 2])
    alone, *others = await replicas.offer(30.0, 60.0, [0, 1, 2])
    assert alone == pytest.approx(200, rel=0.15)
    assert sum(others) == pytest.approx(600, rel=0.1)


@in_virtual_time
async def test_what_was_taken_without_redis_and_is_filled_again_is_no_debt() -> None:
    replicas = await FakeReplicas(1).start()
    await replicas.offer(2.0, 15.0, [0])
    replicas[0].store.is_cut = True
    await replicas.offer(60.0, 15.0, [0])
    replicas[0].store.is_cut = False
    assert (await replicas.offer(10.0, 15.0, [0]))[0] == pytest.approx(150, abs=2)


@in_virtual_time
async def test_a_small_demand_beside_a_large_one_is_not_left_without_a_unit() -> None:
    replicas = await FakeReplicas().start()
    taken = [0, 0]
    for step in range(1500):
        await asyncio.sleep(0.02)
        taken[1] += replicas[1].take("u", 2)
        taken[0] += replicas[0].take("u", 1) if step % 25 == 0 else 0
    assert taken[0] >= 10, "2 of 102 units asked are 12 of 600 in 30 s"
    assert sum(taken) == pytest.approx(600 + 40, rel=0.1)


@in_virtual_time
async def test_what_was_just_taken_without_redis_is_charged_afterwards() -> None:
    replicas = await FakeReplicas().start()
    replicas[0].store.is_cut = True
    assert replicas[0].take("u", 100) == 13
    await asyncio.sleep(0.5)
    replicas[0].store.is_cut = False
    await asyncio.sleep(RATE_INTERVAL_S)
    assert replicas.scripts.debts["requests:u"][1] == pytest.approx(13)


@in_virtual_time
async def test_a_replica_that_never_reached_redis_assumes_the_configured_number() -> None:
    replicas = FakeReplicas()
    late = replicas.make("late")
    late.store.is_cut = True
    await asyncio.sleep(4.0)
    assert late.take("u", 100) == 13


@in_virtual_time
async def test_a_limit_of_zero_sets_none() -> None:
    replicas = await FakeReplicas(limits=Limits(units_per_s=0, max_sessions=0)).start()
    assert replicas[0].take("u", 1000) == 1000
    assert replicas[0].open_sessions("u", 1000) == 1000
    assert replicas[0].shared.num_shares == 0


@in_virtual_time
async def test_a_typing_user_costs_redis_few_messages() -> None:
    """1,000 users send 1.5 requests a second, spread over three replicas by user."""
    replicas, draw = await FakeReplicas().start(), random.Random(3)
    users = [f"user-{number}" for number in range(1000)]

    async def serve(seconds: float) -> int:
        before, refused = replicas.scripts.num_commands, 0
        for _ in range(round(seconds / 0.02)):
            await asyncio.sleep(0.02)
            for _each in range(30):
                user = draw.randrange(1000)
                refused += not replicas[user % 3].take(users[user])
        assert refused == 0
        return replicas.scripts.num_commands - before

    await serve(8.0)
    assert await serve(10.0) < 10 * 450


@in_virtual_time
async def test_replicas_grow_old_while_redis_does_not_answer() -> None:
    replicas = await FakeReplicas().start()
    assert sum(each.is_alive for each in replicas[0].shared.replicas.seen) == 3
    replicas[0].store.is_cut = True
    await asyncio.sleep(4.0)
    assert not any(each.is_alive for each in replicas[0].shared.replicas.seen)
    assert replicas[0].shared.replicas.num_alive == 3, "the limits are divided as before"


@in_virtual_time
async def test_two_processes_with_one_id_are_found(caplog: pytest.LogCaptureFixture) -> None:
    replicas = await FakeReplicas().start()
    assert not replicas[0].shared.replicas.has_duplicate_id
    again = replicas.make("replica-0")
    await asyncio.sleep(3.0)
    assert replicas[0].shared.replicas.has_duplicate_id
    assert again.shared.replicas.has_duplicate_id
    assert sum("another process has the replica id" in each for each in caplog.messages) == 2


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
async def test_a_session_that_is_closed_at_once_costs_redis_nothing() -> None:
    replicas = await FakeReplicas().start()
    replicas[0].open_sessions("u", 1)
    replicas[0].sessions.leave("u")
    await asyncio.sleep(2 * SESSIONS_INTERVAL_S)
    assert len(replicas[0].sessions) == 0
    assert "sessions:u" not in replicas.scripts.shares


@in_virtual_time
async def test_a_session_that_is_closed_while_redis_answers_is_withdrawn_from_it() -> None:
    replicas = await FakeReplicas().start()
    one = replicas[0].sessions
    replicas[0].open_sessions("u", 1)
    (report,) = one.reports(replicas[0].clock.now())
    one.leave("u")
    report.settle((0.5, 1.0))
    (withdrawn,) = one.reports(replicas[0].clock.now() + SESSIONS_INTERVAL_S)
    assert withdrawn.arguments[5:7] == (0, 0.0)
    assert len(one) == 0


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
