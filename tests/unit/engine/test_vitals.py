import pytest

from completion_server.engine.settings import EngineSettings
from completion_server.engine.vitals import Vitals

SETTINGS = EngineSettings(hang_timeout_s=10, step_timeout_s=60, heartbeat_s=5)


class Watch:
    """Checks an engine's vitals five times a second."""

    def __init__(self, settings: EngineSettings = SETTINGS) -> None:
        self.vitals = Vitals(settings, 0.0)
        self._num_checks = 0
        self._cpu_seconds = 0.0

    def hangs_at(self, until: float, cores: float | None = None) -> float | None:
        """Check until a time, and return when the engine was first considered hung. Its processes use `cores`."""
        while self._num_checks < 5 * until:
            self._num_checks += 1
            now = self._num_checks / 5
            self._cpu_seconds += (cores or 0.0) / 5
            if self.vitals.wants_cpu_seconds(now):
                self.vitals.record_cpu_seconds(now, None if cores is None else self._cpu_seconds)
            if self.vitals.check(now):
                return now
        return None


def test_a_newcomer_does_not_hide_that_the_engine_hangs() -> None:
    watch = Watch()
    watch.vitals.generation_opened(0)
    assert watch.hangs_at(9) is None
    watch.vitals.generation_opened(9)
    assert watch.hangs_at(20) == pytest.approx(10, abs=0.3)


def test_an_idle_engine_does_not_hang() -> None:
    watch = Watch()
    assert watch.hangs_at(1000) is None
    number = watch.vitals.generation_opened(1000)
    assert watch.hangs_at(1001) is None
    watch.vitals.generation_closed(number)
    assert watch.hangs_at(2000) is None


def test_an_engine_whose_callers_all_give_up_before_an_output_is_busy_and_not_hung() -> None:
    watch = Watch()
    for now in range(100):
        number = watch.vitals.generation_opened(now)
        assert watch.hangs_at(now + 1) is None
        watch.vitals.generation_closed(number)


def test_an_output_that_is_read_before_the_watch_wakes_does_not_excuse_a_later_hang() -> None:
    vitals = Vitals(SETTINGS, 0.0)
    vitals.generation_opened(0.0)
    vitals.output_received(3600.0)
    vitals.check(3600.1)
    assert any(vitals.check(3600.1 + number / 5) for number in range(1, 70))


def test_steps_that_take_long_give_it_more_time() -> None:
    watch = Watch()
    watch.vitals.generation_opened(0)
    assert watch.hangs_at(8) is None
    watch.vitals.output_received(8)
    assert watch.hangs_at(100) == pytest.approx(8 + 3 * 8, abs=0.3)


def test_a_step_of_long_ago_gives_it_no_more_time() -> None:
    watch = Watch()
    watch.vitals.generation_opened(0)
    watch.hangs_at(8)
    for now in range(8, 1000):
        watch.vitals.output_received(now)
        assert watch.hangs_at(now + 1) is None
    assert watch.hangs_at(1100) == pytest.approx(999 + 10, abs=0.3)


@pytest.mark.parametrize(("cores", "after"), [(None, 10), (0.0, 10), (0.05, 10), (0.2, 60), (2.0, 60)])
def test_an_engine_that_computes_hangs_later(cores: float | None, after: float) -> None:
    watch = Watch()
    watch.vitals.generation_opened(0)
    assert watch.hangs_at(100, cores) == pytest.approx(after, abs=0.3)


def test_cpu_time_of_an_earlier_silence_does_not_count() -> None:
    watch = Watch()
    number = watch.vitals.generation_opened(0)
    assert watch.hangs_at(5, 0.0) is None
    watch.vitals.output_received(5)
    watch.vitals.generation_closed(number)
    assert watch.hangs_at(100, 2.0) is None
    watch.vitals.generation_opened(100)
    assert watch.hangs_at(200, 0.0) == pytest.approx(115, abs=0.3)  # its longest step took 5 s


def test_an_idle_engine_gets_heartbeats() -> None:
    watch = Watch()
    watch.hangs_at(4.9)
    assert not watch.vitals.wants_heartbeat(4.9)
    assert watch.vitals.wants_heartbeat(5.1)
    watch.vitals.output_received(5.1)
    watch.hangs_at(10)
    assert not watch.vitals.wants_heartbeat(10)


def test_if_all_callers_give_up_the_heartbeat_proves_a_hang() -> None:
    watch = Watch()
    watch.hangs_at(2.4)
    caller = watch.vitals.generation_opened(2.4)
    watch.hangs_at(2.6)
    assert watch.vitals.wants_heartbeat(2.6)
    watch.vitals.generation_opened(2.6)  # the heartbeat
    watch.vitals.generation_closed(caller)
    assert watch.hangs_at(20) == pytest.approx(12.6, abs=0.3)
