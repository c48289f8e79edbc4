from completion_server.engine.supervisor import Vitals


def test_an_engine_that_owes_an_answer_and_is_silent_too_long_hangs() -> None:
    vitals = Vitals(hang_timeout_s=10, heartbeat_s=5, now=0)
    vitals.opened(1)
    assert not vitals.is_hung(11)
    assert vitals.is_hung(11.1)


def test_every_output_is_a_sign_of_life() -> None:
    vitals = Vitals(hang_timeout_s=10, heartbeat_s=5, now=0)
    vitals.opened(0)
    vitals.heard(9)
    assert not vitals.is_hung(18)


def test_a_newcomer_does_not_hide_that_the_engine_hangs() -> None:
    vitals = Vitals(hang_timeout_s=10, heartbeat_s=5, now=0)
    vitals.opened(0)
    vitals.opened(9)
    assert vitals.is_hung(10.5)


def test_an_idle_engine_owes_nothing() -> None:
    vitals = Vitals(hang_timeout_s=10, heartbeat_s=5, now=0)
    assert not vitals.is_hung(1000)
    number = vitals.opened(1000)
    assert not vitals.is_hung(1001)
    vitals.closed(number)
    assert not vitals.is_hung(2000)


def test_an_idle_engine_is_asked_for_a_sign_of_life() -> None:
    vitals = Vitals(hang_timeout_s=10, heartbeat_s=5, now=0)
    assert not vitals.wants_heartbeat(5)
    assert vitals.wants_heartbeat(5.1)
    vitals.heard(5.1)
    assert not vitals.wants_heartbeat(10)


def test_an_engine_whose_callers_all_give_up_before_an_output_is_busy_and_not_hung() -> None:
    vitals = Vitals(hang_timeout_s=10, heartbeat_s=5, now=0)
    for now in range(100):
        number = vitals.opened(now)
        assert not vitals.is_hung(now + 0.2)
        vitals.closed(number)


def test_where_all_callers_give_up_the_heartbeat_proves_a_hang() -> None:
    vitals = Vitals(hang_timeout_s=10, heartbeat_s=5, now=0)
    caller = vitals.opened(2.4)
    assert vitals.wants_heartbeat(2.6)
    vitals.opened(2.6)  # the heartbeat
    vitals.closed(caller)
    assert not vitals.is_hung(12.6)
    assert vitals.is_hung(12.7)


def test_a_heartbeat_of_zero_never_asks() -> None:
    assert not Vitals(hang_timeout_s=10, heartbeat_s=0, now=0).wants_heartbeat(1000)
