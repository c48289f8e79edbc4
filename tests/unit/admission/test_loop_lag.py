"""Detection of event-loop overload, on a clock that the test sets."""

from completion_server.admission.loop_lag import LoopLagMonitor
from completion_server.core.events import Event, LoopLagged


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


def test_a_limit_of_zero_reports_no_overload() -> None:
    assert not LoopLagMonitor(0.0, SetClock()).is_behind(1e9)
