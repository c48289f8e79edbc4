"""When an engine is considered hung, and when it gets a heartbeat."""

from collections.abc import Callable

import pytest

from completion_server.engine.settings import EngineSettings
from completion_server.engine.vitals import Vitals
from tests.support.constants import with_constants

SETTINGS = with_constants(EngineSettings(), heartbeat_s=5)


class Watch:
    """Checks an engine's vitals five times a second."""

    def __init__(self) -> None:
        self.vitals = Vitals(SETTINGS, 0.0)
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

    def output(self, now: float) -> None:
        assert self.hangs_at(now) is None
        self.vitals.output_received(now)


def newcomer(watch: Watch) -> None:
    assert watch.hangs_at(9) is None
    watch.vitals.generation_opened(9)


def steps_every_second(watch: Watch) -> None:
    for now in range(8, 1000):
        watch.output(now)


def two_long_steps(watch: Watch) -> None:
    watch.output(9)
    watch.output(30)


@pytest.mark.parametrize(
    ("before", "cores", "hangs_at"),
    [
        pytest.param(newcomer, None, 10, id="a newcomer does not hide it"),
        pytest.param(lambda watch: watch.output(8), None, 8 + 3 * 8, id="three times its longest step"),
        pytest.param(steps_every_second, None, 999 + 10, id="but not one of long ago"),
        pytest.param(two_long_steps, None, 30 + 60, id="and no more than a step may take"),
        pytest.param(lambda _watch: None, 0.05, 10, id="its processes rest"),
        pytest.param(lambda _watch: None, 0.2, 60, id="its processes compute"),
        pytest.param(lambda watch: watch.hangs_at(15, 2.0), 0.0, 15 + 10, id="they have stopped to compute"),
    ],
)
def test_an_engine_with_an_open_generation_hangs(
    before: Callable[[Watch], object], cores: float | None, hangs_at: float
) -> None:
    watch = Watch()
    watch.vitals.generation_opened(0)
    before(watch)
    assert watch.hangs_at(1200, cores) == pytest.approx(hangs_at, abs=1.3)


def test_an_engine_without_callers_or_whose_callers_all_give_up_does_not_hang() -> None:
    watch = Watch()
    assert watch.hangs_at(1000) is None
    for now in range(1000, 1100):
        number = watch.vitals.generation_opened(now)
        assert watch.hangs_at(now + 1) is None
        watch.vitals.generation_closed(number)
    assert watch.hangs_at(2000) is None


def test_time_in_which_nobody_watched_neither_blames_the_engine_nor_excuses_it() -> None:
    vitals = Vitals(SETTINGS, 0.0)
    vitals.generation_opened(0.0)
    assert not vitals.check(3600.0)
    vitals.output_received(7200.0)
    vitals.check(7200.1)
    assert any(vitals.check(7200.1 + number / 5) for number in range(1, 100))


def test_cpu_time_of_an_earlier_silence_does_not_count() -> None:
    watch = Watch()
    number = watch.vitals.generation_opened(0)
    assert watch.hangs_at(5, 0.0) is None
    watch.vitals.output_received(5)
    watch.vitals.generation_closed(number)
    assert watch.hangs_at(100, 2.0) is None
    watch.vitals.generation_opened(100)
    assert watch.hangs_at(200, 0.0) == pytest.approx(115, abs=0.3)  # its longest step took 5 s


def test_an_idle_engine_gets_heartbeats_and_one_whose_callers_wait_gets_them_sooner() -> None:
    watch = Watch()
    watch.hangs_at(4.9)
    assert [watch.vitals.wants_heartbeat(now) for now in (4.9, 5.1)] == [False, True]
    watch.vitals.output_received(5.1)
    watch.hangs_at(7.5)
    caller = watch.vitals.generation_opened(7.5)
    watch.hangs_at(7.7)
    assert watch.vitals.wants_heartbeat(7.7)
    watch.vitals.generation_opened(7.7)  # the heartbeat
    watch.vitals.generation_closed(caller)
    assert watch.hangs_at(40) == pytest.approx(7.7 + 10, abs=0.3), "if the caller gives up, the heartbeat proves it"
