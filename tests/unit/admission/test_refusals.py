from hypothesis import given
from hypothesis import strategies as st

from completion_server.admission.refusals import LEAST_CHARGE_BYTES, RefusalBudget

KIB = 1024


def test_a_connection_may_be_refused_as_much_as_its_burst() -> None:
    budget = RefusalBudget(100 * KIB, 300 * KIB)
    for _ in range(3):
        budget.charge("a", 100 * KIB, 10.0)
    assert budget.wait_s("a", 10.0) == 0
    budget.charge("a", 100 * KIB, 10.0)
    assert budget.wait_s("a", 10.0) == 1.0
    assert budget.wait_s("a", 10.5) == 0.5
    assert budget.wait_s("a", 11.0) == 0
    assert budget.wait_s("b", 10.0) == 0


def test_a_refusal_has_a_minimum_charge() -> None:
    budget = RefusalBudget(LEAST_CHARGE_BYTES, 2 * LEAST_CHARGE_BYTES)
    for _ in range(4):
        budget.charge("a", 1, 0.0)
    assert budget.wait_s("a", 0.0) == 2.0


def test_a_rate_of_zero_charges_nothing() -> None:
    budget = RefusalBudget(0, 1)
    budget.charge("a", 10**9, 0.0)
    assert budget.wait_s("a", 0.0) == 0


def test_connections_whose_bucket_is_full_are_forgotten() -> None:
    budget = RefusalBudget(100 * KIB, 300 * KIB)
    for number in range(10_000):
        budget.charge(number, 1, float(number))
    assert budget.num_known < 5_000


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 5)), max_size=50))
def test_no_connection_waits_for_longer_than_a_minute_or_for_ever(charges: list[tuple[int, float]]) -> None:
    budget, now = RefusalBudget(100 * KIB, 300 * KIB), 0.0
    for num_bytes, pause_s in charges:
        now += pause_s
        budget.charge("a", num_bytes, now)
        assert 0 <= budget.wait_s("a", now) <= 60.001
    assert budget.wait_s("a", now + 61) == 0
