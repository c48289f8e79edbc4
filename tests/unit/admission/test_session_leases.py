"""Sessions that replicas count together."""

from completion_server.admission.standing import Phase
from tests.support.shared_limits import FakeReplicas, Limits


def opened_everywhere(replicas: FakeReplicas, rounds: int = 30) -> list[int]:
    """Open as many sessions as all replicas allow."""
    opened = [0] * replicas.num
    for _ in range(rounds):
        for number in range(replicas.num):
            opened[number] += replicas[number].open_sessions("u", 100)
        replicas.advance(0.2)
    return opened


def test_a_lone_replica_gets_all_sessions_of_a_key() -> None:
    replicas = FakeReplicas()
    opened = 0
    for _ in range(20):
        opened += replicas[0].open_sessions("u", 100)
        replicas.advance(0.1)
    assert opened == 12
    assert replicas[0].sessions.is_full("u")
    assert not replicas[0].sessions.is_full("another")


def test_replicas_together_open_no_more_than_the_limit_and_what_is_leased_ahead() -> None:
    replicas = FakeReplicas()
    assert sum(opened_everywhere(replicas)) == 12
    assert replicas[0].num_open_of("u") > 0


def test_a_closed_session_may_be_opened_elsewhere() -> None:
    replicas = FakeReplicas()
    for _ in range(20):
        replicas[0].open_sessions("u", 100)
        replicas.advance(0.1)
    replicas[1].open_sessions("u", 1)
    replicas.advance(0.2)
    for _ in range(6):
        replicas[0].sessions.leave("u")
    replicas.advance(1.0)
    opened = 0
    for _ in range(20):
        opened += replicas[1].open_sessions("u", 100)
        replicas.advance(0.2)
    assert opened >= 4
    assert replicas[0].num_open_of("u") + replicas[1].num_open_of("u") <= 13


def test_the_last_session_gives_the_lease_back() -> None:
    replicas = FakeReplicas()
    replicas[0].open_sessions("u", 1)
    replicas.advance(0.2)
    replicas[0].sessions.leave("u")
    assert len(replicas[0].sessions) == 0
    replicas.advance(0.2)
    assert replicas.budgets.sessions("test:sessions:u") == {}


def test_a_session_reopened_at_once_keeps_the_lease() -> None:
    replicas = FakeReplicas()
    replicas[0].open_sessions("u", 1)
    replicas.advance(0.2)
    replicas[0].sessions.leave("u")
    replicas[0].open_sessions("u", 1)
    replicas.advance(0.2)
    assert replicas.budgets.sessions("test:sessions:u") == {"replica-0": 2}


def test_a_lease_is_renewed_while_a_session_is_open_and_forgotten_with_its_replica() -> None:
    replicas = FakeReplicas()
    for number in (0, 1):
        replicas[number].open_sessions("u", 1)
    replicas.advance(90.0)
    assert set(replicas.budgets.sessions("test:sessions:u")) == {"replica-0", "replica-1"}
    replicas.replicas.pop(1)
    replicas.advance(90.0)
    assert set(replicas.budgets.sessions("test:sessions:u")) == {"replica-0"}


def test_a_replica_that_is_cut_off_has_its_part_and_the_others_leave_it_free() -> None:
    replicas = FakeReplicas()
    replicas[0].store.is_cut = True
    replicas.advance(5.0)
    assert replicas[0].ledger.phase is Phase.ALONE
    opened = opened_everywhere(replicas)
    assert opened[0] == 4
    assert sum(opened) <= 13


def test_open_sessions_are_reported_after_the_cut() -> None:
    replicas = FakeReplicas()
    replicas[0].store.is_cut = True
    replicas.advance(5.0)
    assert replicas[0].open_sessions("u", 100) == 4
    replicas[0].store.heal()
    replicas.advance(2.0)
    replicas[0].sessions.is_full("u")
    replicas.advance(1.0)
    assert replicas.budgets.sessions("test:sessions:u")["replica-0"] >= 4


def test_a_limit_of_one_allows_a_move_to_another_replica() -> None:
    replicas = FakeReplicas(limits=Limits(max_sessions=1))
    assert replicas[0].open_sessions("u", 5) == 1
    replicas.advance(0.5)
    replicas[0].sessions.leave("u")
    assert replicas[1].open_sessions("u", 5) == 1
    replicas.advance(0.5)
    assert replicas[2].open_sessions("u", 5) <= 1


def test_a_new_key_opens_half_of_an_equal_share_at_once_and_the_rest_after_a_round_trip() -> None:
    replicas = FakeReplicas(limits=Limits(max_sessions=64))
    assert replicas[0].open_sessions("u", 64) == 10
    assert replicas[0].sessions.lease_wait_s("u") == 0.1
    replicas.advance(0.1)
    assert replicas[0].open_sessions("u", 64) > 0


def test_a_limit_that_is_reached_here_needs_no_lease() -> None:
    replicas = FakeReplicas(limits=Limits(max_sessions=1))
    replicas[0].open_sessions("u", 1)
    assert replicas[0].sessions.is_full("u")
    assert replicas[0].sessions.lease_wait_s("u") is None
