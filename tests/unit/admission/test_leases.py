"""Limits that replicas share: what a replica may take with Redis, without it, and after it came back."""

import random

import pytest

from completion_server.admission.leases import IDLE_S
from completion_server.admission.standing import Phase
from completion_server.state.lease_scripts import HEARTBEAT, LEASE_RATE
from completion_server.state.leases import KNOWN_S, LIFE_S
from completion_server.state.store import Arg
from tests.support.shared_limits import FakeReplicas, Limits


def test_a_first_request_is_decided_at_once_from_a_part_of_a_lease() -> None:
    replicas = FakeReplicas()
    assert replicas[0].take("u", 100) == 3
    assert replicas[0].limiter.delay_s("u", replicas.clock.at) > 0


def test_a_lone_active_replica_gets_the_whole_rate_and_the_whole_burst() -> None:
    replicas = FakeReplicas()
    taken = replicas.offer(1.0, 100.0, [0])[0]
    assert 50 <= taken <= 40 + 20
    assert replicas.offer(10.0, 60.0, [0])[0] == pytest.approx(200, rel=0.05)


def test_active_replicas_divide_the_rate_evenly() -> None:
    replicas = FakeReplicas()
    replicas.offer(5.0, 60.0, [0, 1, 2])
    taken = replicas.offer(20.0, 60.0, [0, 1, 2])
    assert sum(taken) == pytest.approx(400, rel=0.05)
    assert min(taken) > 0.6 * max(taken)


def test_keys_have_budgets_of_their_own() -> None:
    replicas = FakeReplicas()
    replicas.offer(5.0, 100.0, [0], "a")
    assert replicas.offer(1.0, 30.0, [1], "b")[0] >= 29


def test_what_one_replica_spent_another_does_not_get_again() -> None:
    replicas = FakeReplicas()
    replicas.offer(5.0, 100.0, [0])
    assert replicas.offer(1.0, 100.0, [1])[0] <= 20 + 3 + 1


def test_a_charge_beyond_the_holding_is_paid_by_all_replicas() -> None:
    replicas = FakeReplicas()
    replicas[0].limiter.charge("u", replicas.clock.at, 100.0)
    replicas.advance(0.2)
    assert replicas[0].limiter.delay_s("u", replicas.clock.at) > 0
    replicas[1].take("u", 100)
    replicas.advance(0.2)
    assert replicas[1].take("u", 100) == 0
    assert replicas.offer(3.0, 100.0, [1])[0] == 0
    assert replicas.offer(6.0, 100.0, [1])[0] > 0


def test_a_refund_is_given_back_to_all_replicas() -> None:
    replicas = FakeReplicas()
    replicas[0].limiter.charge("u", replicas.clock.at, 40.0)
    replicas.advance(0.2)
    replicas[0].limiter.charge("u", replicas.clock.at, -40.0)
    replicas.advance(0.2)
    replicas[1].take("u", 1)
    replicas.advance(0.2)
    assert replicas.budgets.level("test:requests:u") > 5


def test_a_refund_pays_a_debt_in_redis_first() -> None:
    replicas = FakeReplicas()
    replicas[0].take("u", 1)
    replicas[0].limiter.charge("u", replicas.clock.at, 60.0)
    replicas.advance(0.1)
    assert replicas.budgets.level("test:requests:u") < 0
    replicas[0].limiter.charge("u", replicas.clock.at, -60.0)
    assert replicas[0].take("u", 100) == 0
    replicas.advance(0.2)
    assert replicas[0].take("u", 100) > 10


def test_what_was_taken_while_redis_was_away_is_charged_afterwards() -> None:
    replicas = FakeReplicas()
    replicas[0].store.is_cut = True
    assert replicas[0].take("u", 3) == 3
    replicas.advance(0.5)
    replicas[0].store.heal()
    replicas.advance(0.7)
    assert replicas.budgets.level("test:requests:u") < 40 - 3


def test_idle_holdings_are_returned_and_forgotten() -> None:
    replicas = FakeReplicas()
    for number in range(3):
        replicas[number].take("u", 1)
        assert replicas[number].ledger.num_leases == 1
    replicas.advance(IDLE_S + 1)
    assert [replicas[number].ledger.num_leases for number in range(3)] == [0, 0, 0]
    num_commands = replicas.budgets.num_commands
    replicas.advance(1.0)
    assert replicas.budgets.num_commands - num_commands == 6, "only two heartbeats of each"
    assert replicas.budgets.level("test:requests:u") == 40


def test_a_replica_that_is_cut_off_takes_its_own_part_and_the_others_the_rest() -> None:
    replicas = FakeReplicas()
    replicas.offer(5.0, 60.0, [0, 1, 2])
    replicas[0].store.is_cut = True
    assert sum(replicas.offer(3.0, 60.0, [0, 1, 2])) <= 60 + replicas.limits.lease(3)
    assert replicas[0].ledger.phase is Phase.ALONE
    assert replicas[1].ledger.phase is Phase.SHARED
    alone, *others = replicas.offer(30.0, 60.0, [0, 1, 2])
    assert alone == pytest.approx(200, rel=0.05)
    assert sum(others) == pytest.approx(400, rel=0.05)


def test_until_the_others_count_it_out_a_replica_spends_only_what_it_has() -> None:
    replicas = FakeReplicas()
    replicas[0].take("u", 1)
    replicas.advance(0.5)
    replicas[0].store.is_cut = True
    replicas.advance(1.5)
    assert replicas[0].ledger.phase is Phase.WAITING
    assert replicas[0].take("u", 100) == 20, "its holding was filled before"
    assert replicas[0].take("new", 100) == 3


def test_the_parts_are_shared_again_after_the_cut() -> None:
    replicas = FakeReplicas()
    replicas[0].store.is_cut = True
    replicas.advance(20.0)
    replicas[0].store.heal()
    replicas.advance(1.5)
    assert replicas[0].ledger.phase is Phase.SHARED
    replicas.offer(5.0, 60.0, [1])
    assert replicas.offer(10.0, 60.0, [1])[0] == pytest.approx(200, rel=0.05)


def test_without_redis_each_replica_has_its_part() -> None:
    replicas = FakeReplicas()
    for replica in replicas.replicas:
        replica.store.is_cut = True
    replicas.advance(5.0)
    taken = replicas.offer(30.0, 60.0, [0, 1, 2])
    assert taken == pytest.approx([213, 213, 213], abs=8), "a third of the rate and of the burst"


def test_a_key_that_is_new_while_a_replica_is_alone_is_forgotten_when_its_holding_is_paid_for() -> None:
    replicas = FakeReplicas()
    replicas[0].store.is_cut = True
    replicas.advance(5.0)
    replicas[0].take("u", 1)
    replicas.advance(2 * IDLE_S + 1)
    assert replicas[0].ledger.num_leases == 0


def test_a_replica_that_leaves_gives_its_part_to_the_others() -> None:
    replicas = FakeReplicas()
    replicas[2].take("u", 3)
    replicas.advance(0.2)
    gone = replicas.replicas.pop()
    for request in gone.ledger.give_back(replicas.clock.at):
        assert request.arguments[4] < 0, "it gives units back"
        replicas.budgets.run("EVAL", LEASE_RATE, 1, "test:requests:u", "replica-2", *request.arguments)
    assert replicas.budgets.level("test:requests:u") == pytest.approx(40, abs=1)
    replicas.budgets.run("EVAL", *_leave("replica-2"))
    replicas.advance(1.0)
    assert [replicas[0].ledger.num_replicas, replicas[1].ledger.num_replicas] == [2, 2]
    assert replicas.offer(10.0, 60.0, [0])[0] >= 195


def test_a_replica_that_never_reached_redis_assumes_the_configured_number() -> None:
    replicas = FakeReplicas()
    late = replicas.start("late")
    late.store.is_cut = True
    replicas.replicas.append(late)
    assert late.ledger.phase is Phase.WAITING
    replicas.advance(4.0)
    assert late.ledger.phase is Phase.ALONE
    assert replicas.offer(30.0, 60.0, [3])[0] == pytest.approx(200, rel=0.05)


def test_a_rate_of_zero_sets_no_limit() -> None:
    replicas = FakeReplicas(limits=Limits(units_per_s=0, max_sessions=0))
    assert replicas[0].take("u", 1000) == 1000
    assert replicas[0].open_sessions("u", 1000) == 1000
    assert replicas[0].ledger.num_leases == 0


def test_a_lost_reply_makes_the_sum_smaller() -> None:
    replicas = FakeReplicas()
    replicas[0].store.loses_replies = True
    replicas[0].take("u", 5)
    replicas.advance(0.5)
    replicas[0].store.heal()
    assert replicas.offer(1.0, 100.0, [0])[0] <= 40 + 20


def test_a_typing_user_costs_redis_few_messages() -> None:
    """1,000 users send 1.5 requests a second, spread over three replicas by user."""
    replicas, draw = FakeReplicas(), random.Random(3)
    users = [f"user-{number}" for number in range(1000)]

    def serve(seconds: float) -> int:
        before, refused = replicas.budgets.num_commands, 0
        for _ in range(round(seconds / 0.01)):
            replicas.advance(0.01)
            for _ in range(15):
                user = draw.randrange(1000)
                refused += not replicas[user % 3].take(users[user])
        assert refused == 0
        return replicas.budgets.num_commands - before

    serve(8.0)
    assert serve(10.0) < 10 * 300


def test_a_quiet_user_has_a_part_of_the_burst_while_redis_is_away() -> None:
    replicas = FakeReplicas()
    replicas[0].store.is_cut = True
    replicas.advance(6.0)
    assert replicas[0].take("u", 100) == 13
    replicas.advance(60 / 20)
    assert replicas[0].take("u", 100) == 13


def test_a_single_known_replica_has_the_whole_burst_and_rate_while_redis_is_away() -> None:
    replicas = FakeReplicas(1)
    replicas[0].store.is_cut = True
    replicas.advance(4.0)
    assert replicas[0].take("u", 100) == 40
    assert replicas.offer(10.0, 60.0, [0])[0] == pytest.approx(200, abs=2)


def test_what_was_taken_alone_is_charged_when_redis_answers() -> None:
    replicas = FakeReplicas()
    replicas[0].store.is_cut = True
    replicas.advance(6.0)
    assert replicas[0].take("u", 100) == 13
    replicas[0].store.heal()
    replicas.advance(0.2)
    assert replicas[0].ledger.phase is Phase.SHARED
    assert replicas.budgets.level("test:requests:u") < 40 - 10


def test_a_first_large_charge_does_not_refuse_the_next_one_before_redis_replies() -> None:
    replicas = FakeReplicas(limits=Limits(2000.0, 8000.0))
    replicas[0].limiter.charge("u", replicas.clock.at, 3000.0)
    assert replicas[0].limiter.delay_s("u", replicas.clock.at) == 0
    replicas[0].limiter.charge("u", replicas.clock.at, 1000.0)
    assert 0 < replicas[0].limiter.delay_s("u", replicas.clock.at) <= 0.1
    replicas.advance(0.1)
    assert replicas[0].limiter.delay_s("u", replicas.clock.at) == 0


def _leave(name: str) -> tuple[Arg, ...]:
    return HEARTBEAT, 1, "test:replicas:", name, "-1", LIFE_S, KNOWN_S, "p"
