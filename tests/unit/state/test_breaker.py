"""The breaker of Redis opens at a failure and closes at a success."""

from completion_server.state.breaker import Breaker


def test_it_begins_open_and_may_probe_at_once() -> None:
    breaker = Breaker(0.5)
    assert breaker.is_open
    assert breaker.probe_in_s(100.0) == 0.0
    assert breaker.reason


def test_one_success_closes_it_and_one_failure_opens_it() -> None:
    breaker = Breaker(0.5)
    assert breaker.succeeded()
    assert not breaker.is_open
    assert not breaker.succeeded()
    assert breaker.failed("TimeoutError", 10.0)
    assert breaker.is_open
    assert (breaker.reason, breaker.opened_at, breaker.num_opened) == ("TimeoutError", 10.0, 1)
    assert breaker.probe_in_s(10.2) == 0.3 or abs(breaker.probe_in_s(10.2) - 0.3) < 1e-9


def test_a_failed_probe_waits_again_but_is_the_same_outage() -> None:
    breaker = Breaker(0.5)
    breaker.succeeded()
    breaker.failed("first", 10.0)
    assert not breaker.failed("second", 10.5)
    assert (breaker.reason, breaker.opened_at, breaker.num_opened) == ("second", 10.0, 1)
    assert breaker.probe_in_s(11.5) == 0.0


def test_a_start_without_redis_is_no_outage() -> None:
    breaker = Breaker(0.5)
    assert not breaker.failed("refused", 1.0)
    assert breaker.num_opened == 0
