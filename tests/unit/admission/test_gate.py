import pytest

from completion_server.admission.gate import AdmissionSettings, Gate, Readiness
from completion_server.core.errors import OverloadedError, UnavailableError


def make_gate(max_sessions: int = 2) -> Gate:
    return Gate(AdmissionSettings(max_sessions=max_sessions, retry_after_ms=70))


def test_nobody_comes_in_before_the_engine_is_ready() -> None:
    gate = make_gate()
    with pytest.raises(UnavailableError, match="starting") as caught:
        gate.check()
    assert caught.value.retry_after_ms == 70


def test_a_failed_engine_is_told_from_one_that_starts() -> None:
    gate = make_gate()
    gate.set_engine_ready(True)
    gate.check()
    gate.set_engine_ready(False)
    assert gate.readiness is Readiness.ENGINE_DOWN
    with pytest.raises(UnavailableError, match="failed"):
        gate.check()


def test_draining_is_for_good() -> None:
    gate = make_gate()
    gate.drain()
    gate.set_engine_ready(True)
    with pytest.raises(UnavailableError, match="shutting down"):
        gate.check()


def test_sessions_are_counted_and_bounded() -> None:
    gate = make_gate(max_sessions=1)
    gate.set_engine_ready(True)
    with gate.enter_session():
        assert gate.num_sessions == 1
        with pytest.raises(OverloadedError, match="1 sessions are open"):
            gate.enter_session()
    assert gate.num_sessions == 0
    with gate.enter_session():
        assert gate.num_sessions == 1
