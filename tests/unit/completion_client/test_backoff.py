from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from completion_client.backoff import Backoff


def waits(backoff: Backoff, count: int) -> Sequence[float]:
    return [backoff.next_s() for _ in range(count)]


@given(st.text(), st.integers(1, 20))
def test_waits_stay_below_a_bound_that_doubles(seed: str, count: int) -> None:
    backoff = Backoff(0.1, 5.0, seed)
    found = waits(backoff, count)
    assert all(0 <= wait <= min(5.0, 0.1 * 2**place) for place, wait in enumerate(found))
    assert found == waits(Backoff(0.1, 5.0, seed), count), "the same seed, the same waits"
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_clients_do_not_wait_for_the_same_time() -> None:
    assert len({Backoff(0.1, 5.0, str(number)).next_s() for number in range(100)}) == 100
