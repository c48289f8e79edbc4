import pytest

from completion_server.admission.gate import AdmissionSettings, Gate, Readiness
from completion_server.admission.loop_lag import LoopLagMonitor
from completion_server.core.errors import DrainingError, Limit, OverloadedError, ServerFullError, UnavailableError
from completion_server.core.events import Event, LoopLagged


def make_gate(max_sessions: int = 2, **limits: int) -> Gate:
    return Gate(AdmissionSettings(max_sessions=max_sessions, retry_after_ms=70, **limits))


def test_a_failed_engine_and_a_starting_one_have_different_states() -> None:
    gate = make_gate()
    gate.set_engine_ready(True)
    gate.check()
    gate.set_engine_ready(False)
    assert gate.readiness is Readiness.ENGINE_DOWN
    with pytest.raises(UnavailableError, match="failed"):
        gate.check()


@pytest.mark.parametrize(
    ("remaining_s", "expected_ms"), [(None, 70), (0.0, 70), (0.03, 70), (41.5, 41_500), (900.0, 60_000)]
)
def test_while_the_engine_starts_callers_are_told_the_time_that_is_left(
    remaining_s: float | None, expected_ms: int
) -> None:
    gate = Gate(AdmissionSettings(retry_after_ms=70), lambda: remaining_s)
    with pytest.raises(UnavailableError) as caught:
        gate.check()
    assert caught.value.retry_after_ms == expected_ms
    gate.drain()
    with pytest.raises(DrainingError) as refused:
        gate.check()
    assert refused.value.retry_after_ms == 70


def test_the_sessions_of_one_user_are_limited() -> None:
    gate = make_gate(max_sessions=10, max_sessions_per_user=2)
    gate.set_engine_ready(True)
    with gate.enter_session(("t", "ann"), "1.1.1.1"), gate.enter_session(("t", "ann"), "2.2.2.2"):
        with pytest.raises(
            OverloadedError, match=r"2 sessions of this user are open, .*max_sessions_per_user"
        ) as caught:
            gate.enter_session(("t", "ann"), "3.3.3.3")
        assert caught.value.reason == "TOO_MANY_OPEN", "another server is no remedy"
        assert caught.value.limit == Limit("admission.max_sessions_per_user", 2)
        assert gate.num_sessions == 2
        with (
            gate.enter_session(("other tenant", "ann"), ""),
            gate.enter_session(None, ""),
            gate.enter_session(None, ""),
        ):
            assert gate.num_sessions == 5
    with gate.enter_session(("t", "ann"), ""):
        assert gate.num_sessions == 1


def test_the_sessions_of_one_address_are_limited_except_on_a_unix_socket() -> None:
    gate = make_gate(max_sessions=10, max_sessions_per_peer=1)
    gate.set_engine_ready(True)
    with gate.enter_session(("t", "ann"), "1.1.1.1"):
        with pytest.raises(OverloadedError, match=r"1 sessions from this address are open, .*max_sessions_per_peer"):
            gate.enter_session(("t", "bob"), "1.1.1.1")
        with gate.enter_session(("t", "bob"), "2.2.2.2"), gate.enter_session(None, ""), gate.enter_session(None, ""):
            assert gate.num_sessions == 4
    with gate.enter_session(None, "1.1.1.1"):
        assert gate.num_sessions == 1


class SetClock:
    def __init__(self) -> None:
        self.at = 5.0

    def now(self) -> float:
        return self.at


def test_a_long_iteration_is_overload_until_the_next_one_begins() -> None:
    clock, emitted = SetClock(), list[Event]()
    loop_lag = LoopLagMonitor(0.05, clock, emitted.append)
    assert [loop_lag.is_behind(5.0 + seconds) for seconds in (0.0, 0.05, 0.0599, 0.0601, 9.0)] == [
        False, False, False, True, True,
    ]  # fmt: skip
    clock.at = 5.2
    loop_lag.tick()
    assert not loop_lag.is_behind(5.2)
    clock.at = 5.205
    loop_lag.tick()
    assert [round(each.seconds, 6) for each in emitted if isinstance(each, LoopLagged)] == [0.19, 0.0]


def test_sessions_are_counted_and_bounded() -> None:
    gate = make_gate(max_sessions=1)
    gate.set_engine_ready(True)
    with gate.enter_session():
        assert gate.num_sessions == 1
        with pytest.raises(ServerFullError, match=r"1 sessions are open, .*admission\.max_sessions\)") as caught:
            gate.enter_session()
        assert (caught.value.retry_after_ms, caught.value.reason) == (70, "SERVER_FULL")
    assert gate.num_sessions == 0
    with gate.enter_session():
        assert gate.num_sessions == 1
