"""The server chooses K, on simulated steps."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.engine.interface import EngineStep
from completion_server.engine.speculation.controller import Controller, DraftRest
from completion_server.engine.speculation.schedule import SpeculationSchedule, parse_schedule

MAX_BATCH = 32


@dataclass
class Machine:
    """Simulates steps of one batch size with the K of a controller."""

    controller: Controller
    step_s: Callable[[int], float]
    """How long a step takes with K."""
    acceptance: float = 0.8
    batch_size: int = 4
    kinds: tuple[float, ...] = ()
    """If not empty, each completion draws its acceptance from these instead."""
    writing: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By place in the batch: acceptance of the completion there, and how many tokens it still needs."""
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    changes: list[tuple[float, int]] = field(default_factory=list)
    time_with: dict[int, float] = field(default_factory=dict)

    def run(self, seconds: float) -> float:
        """Return the tokens a second over so many seconds."""
        k = self.controller.active.num_speculative_tokens(self.batch_size)
        num_tokens, began_at = 0, self.now
        while self.now < began_at + seconds:
            step = self._step(k)
            num_tokens += step.num_tokens
            schedule = self.controller.observe(step, self.now)
            if schedule is not None:
                k = schedule.num_speculative_tokens(self.batch_size)
                self.changes.append((self.now, k))
        return num_tokens / (self.now - began_at)

    def _step(self, k: int) -> EngineStep:
        took_s = self.step_s(k)
        self.now += took_s
        self.time_with[k] = self.time_with.get(k, 0.0) + took_s
        accepted = [0] * k
        for place in range(self.batch_size):
            acceptance, num_left = self._writing(place)
            for position in range(k):
                if self.rng.random() >= acceptance:
                    break
                accepted[position] += 1
                num_left -= 1
            self.writing[place] = (acceptance, num_left - 1)
        num_tokens = self.batch_size + sum(accepted)
        return EngineStep(self.batch_size, num_tokens, took_s, False, (self.batch_size,) * k, tuple(accepted))

    def _writing(self, place: int) -> tuple[float, int]:
        if not self.kinds:
            return self.acceptance, 0
        acceptance, num_left = self.writing.get(place, (0.0, 0))
        if num_left > 0:
            return acceptance, num_left
        return self.rng.choice(self.kinds), self.rng.randint(15, 45)


def expected(acceptance: float, k: int) -> float:
    return sum(acceptance**i for i in range(k + 1))


def controller(operator_k: int = 4, max_k: int = 6) -> Controller:
    return Controller(SpeculationSchedule.fixed(operator_k, MAX_BATCH), max_k, MAX_BATCH)


def linear(k: int) -> float:
    return 0.010 + 0.003 * k


@pytest.mark.parametrize(
    ("operator_k", "acceptance", "batch_size"), [(0, 0.9, 1), (0, 0.5, 20), (2, 0.9, 4), (6, 0.05, 1), (6, 0.5, 20)]
)
def test_it_finds_the_best_k_from_any_schedule(operator_k: int, acceptance: float, batch_size: int) -> None:
    machine = Machine(controller(operator_k), linear, acceptance, batch_size)
    machine.run(20)
    best = max(expected(acceptance, k) / linear(k) for k in range(7))
    assert machine.run(30) > 0.95 * batch_size * best


def test_high_acceptance_alone_is_no_reason_to_draft() -> None:
    """Each draft token is likely to be accepted, and still costs more than it gains."""
    machine = Machine(controller(4), lambda k: 0.010 * (1 + 1.2 * k), acceptance=0.9, batch_size=16)
    machine.run(20)
    assert machine.run(20) > 0.95 * 16 / 0.010


def test_probes_take_no_more_than_their_share() -> None:
    machine = Machine(controller(3), linear, acceptance=0.75)
    machine.run(10)
    before = dict(machine.time_with)
    machine.run(100)
    spent = sorted(took_s - before.get(k, 0.0) for k, took_s in machine.time_with.items())
    assert sum(spent[:-1]) < 0.04 * 100


def test_it_stays_if_the_gain_is_small() -> None:
    machine = Machine(controller(3), linear, acceptance=0.75)
    machine.run(30)
    settled = machine.controller.chosen.num_speculative_tokens(machine.batch_size)
    changes = 0
    for _ in range(60):
        machine.run(1)
        now = machine.controller.chosen.num_speculative_tokens(machine.batch_size)
        changes += now != settled
        settled = now
    assert changes <= 4


def test_a_change_that_makes_it_worse_is_undone() -> None:
    """The line through the measured times does not predict it: from 4 on, a draft takes ten times as long."""
    machine = Machine(controller(2), lambda k: 0.010 + 0.001 * k + (0.05 if k > 3 else 0.0), acceptance=0.95)
    machine.run(30)
    assert machine.run(60) > 0.93 * 4 * expected(0.95, 3) / 0.013


@st.composite
def steps(draw: st.DrawFn) -> EngineStep:
    num_seqs = draw(st.integers(1, 40))
    drafted = sorted(draw(st.lists(st.integers(1, num_seqs), max_size=4)), reverse=True)
    accepted: list[int] = []
    for most in drafted:
        accepted.append(draw(st.integers(0, min([most, *accepted[-1:]]))))
    seconds = draw(st.none() | st.floats(1e-4, 0.5))
    tokens = num_seqs + sum(accepted)
    return EngineStep(num_seqs, tokens, seconds, draw(st.booleans()), tuple(drafted), tuple(accepted))


@given(st.lists(st.tuples(steps(), st.floats(0, 5)), max_size=60))
def test_its_schedules_are_valid_after_any_steps(observed: list[tuple[EngineStep, float]]) -> None:
    under_test, now = Controller(SpeculationSchedule.fixed(2, MAX_BATCH), 4, MAX_BATCH), 0.0
    for step, pause_s in observed:
        now += pause_s
        under_test.observe(step, now)
        schedule = under_test.active
        assert parse_schedule(schedule.as_lists(), 4) == schedule


def test_a_fall_after_completions_that_differed_is_followed_too() -> None:
    machine = Machine(controller(4), linear, batch_size=1, kinds=(0.1, 0.9))
    assert machine.run(60) > 0.97 / linear(0)
    machine.kinds, machine.writing = (0.1,), {}
    for _ in range(3):
        assert machine.run(5) > 0.94 / linear(0)


@pytest.mark.parametrize("has_undrafted", [True, False])
def test_steps_with_undrafted_generations_are_not_timed(*, has_undrafted: bool) -> None:
    """The controller begins a probe as soon as it has timed some steps."""
    under_test = controller(4)
    steps = [EngineStep(1, 5, 0.02, drafted=(1,) * 4, accepted=(1,) * 4, has_undrafted=has_undrafted)] * 100
    changes = [under_test.observe(step, at / 50) for at, step in enumerate(steps)]
    assert any(changes) == (not has_undrafted)


def test_the_operators_rows_are_kept() -> None:
    table = parse_schedule([[1, 5, 4], [6, MAX_BATCH, 0]], 6)
    assert Controller(table, 6, MAX_BATCH).chosen == Controller(table, 6, MAX_BATCH).active == table


def test_other_batch_sizes_follow_a_change() -> None:
    machine = Machine(controller(5), linear, acceptance=0.85)
    machine.run(20)
    assert machine.controller.active.num_speculative_tokens(4) > 2
    machine.acceptance = 0.0
    machine.run(0.5)
    assert machine.controller.chosen == SpeculationSchedule.fixed(0, MAX_BATCH)


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_it_follows_the_text_and_is_never_slower_than_no_drafts(batch_size: int) -> None:
    """Boilerplate, prose, boilerplate. No gain before a change makes up for a loss after it."""
    machine = Machine(controller(5), linear, batch_size=batch_size)
    for acceptance in (0.85, 0.1, 0.85):
        machine.acceptance = acceptance
        rates = [machine.run(5) for _ in range(15)]
        best = max(expected(acceptance, k) / linear(k) for k in range(7))
        assert min(rates) >= 0.95 * batch_size / linear(0)
        assert sum(rates[6:]) / 9 >= 0.95 * batch_size * best


@pytest.mark.parametrize(
    ("largest_ks", "changes"),
    [
        pytest.param({5000: 0}, [60, 660, 720, 1920, 1980, 4380, 4440], id="never pay: ever more rarely"),
        pytest.param({5000: 2, 5050: 0, 9000: 1}, [], id="pay: stay on"),
        pytest.param({2000: 0, 5000: 3, 5700: 0}, [60, 660, 720, 1920, 1980, 4380, 5060, 5660], id="paid again"),
    ],
)
def test_drafts_that_do_not_pay_rest(largest_ks: dict[int, int], changes: list[int]) -> None:
    """`largest_ks` has the largest K that is chosen until each second."""
    rest, found, now = DraftRest(), list[int](), 0
    for until, largest_k in largest_ks.items():
        found += [at for at in range(now, until) if rest.observe(largest_k, float(at))]
        now = until
    assert found == changes


def test_a_start_without_drafts_tries_them_after_ten_minutes() -> None:
    rest = DraftRest()
    rest.switch_off(100.0)
    assert [now for now in range(100, 800) if rest.observe(0, float(now))] == [700, 760]
