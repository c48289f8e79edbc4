"""The server chooses K, on simulated steps."""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.engine.interface import EngineStep, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.speculation.acceptance import AcceptanceEstimates
from completion_server.speculation.batch_sizes import BatchSizeRange, split_batch_sizes
from completion_server.speculation.controller import Controller
from completion_server.speculation.rest import DraftRest
from completion_server.speculation.schedule import SpeculationSchedule, parse_schedule
from completion_server.speculation.step_times import StepTimeEstimates
from loadtest.simulation import virtual_time

MAX_BATCH = 32


class Unchanging(Controller):
    """Keeps the operator's schedule."""

    def observe(self, _step: EngineStep, _now: float) -> None:
        """Change nothing."""


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


@pytest.mark.parametrize("operator_k", [0, pytest.param(2, marks=pytest.mark.full), 6])
@pytest.mark.parametrize("acceptance", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("batch_size", [1, pytest.param(4, marks=pytest.mark.full), 20])
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


def test_it_returns_to_the_operators_k_if_a_change_makes_it_worse() -> None:
    """The line through the measured times does not predict it: from 4 on, a draft takes ten times as long."""
    machine = Machine(controller(2), lambda k: 0.010 + 0.001 * k + (0.05 if k > 3 else 0.0), acceptance=0.95)
    machine.run(30)
    assert machine.run(60) > 0.93 * 4 * expected(0.95, 3) / 0.013


def test_the_same_steps_give_the_same_schedules() -> None:
    runs = []
    for _ in range(2):
        machine = Machine(controller(5), linear, acceptance=0.4)
        machine.run(20)
        runs.append(machine.changes)
    assert runs[0] == runs[1]
    assert runs[0]


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


@pytest.mark.parametrize("batch_size", [1, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("kinds", [(0.1, 0.9), (0.3, 0.8)])
def test_completions_that_differ_are_no_series_of_changes(batch_size: int, kinds: tuple[float, ...]) -> None:
    """One K for all completions has the highest goodput, however predictable each of them is.

    The controller does not reach it: if it ignored these differences, it would not follow a real fall (the next test).
    """

    def tokens_per_s(choice: Controller) -> float:
        machine = Machine(choice, linear, batch_size=batch_size, kinds=kinds)
        machine.run(30)
        return machine.run(60)

    best = max(tokens_per_s(Unchanging(SpeculationSchedule.fixed(k, MAX_BATCH), 6, MAX_BATCH)) for k in range(7))
    assert tokens_per_s(controller(4)) > 0.93 * best


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3, 4))])
def test_a_fall_after_completions_that_differed_is_followed_too(seed: int) -> None:
    """A high threshold for changes must not hide a real fall."""
    machine = Machine(controller(4), linear, batch_size=1, kinds=(0.1, 0.9), rng=random.Random(seed))
    machine.run(60)
    machine.kinds, machine.writing = (0.1,), {}
    for _ in range(3):
        assert machine.run(5) > 0.95 / linear(0)


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


TIMES = ServiceTimes(
    prefill_base_s=1e-2, prefill_per_token_s=1e-4, decode_base_s=12e-3, decode_per_seq_s=1.4e-3,
    draft_s=4e-3, verify_per_token_s=2e-4,
)  # fmt: skip
"""The small model on two cores, four times slower: fewer steps to learn from."""
MAX_K = 5
PHASES = (0.85, 0.1, 0.85)
"""Boilerplate, prose, boilerplate."""
PHASE_S = 75.0
SETTLED_S = 30.0
WINDOW_S = 5.0
"""A window begins with each phase, so that no gain before a change makes up for a loss after it."""


async def ask_on(engine: ScriptedEngine, client: int) -> None:
    """Ask again and again, for so many tokens that clients don't go in step."""
    for number in itertools.count():
        num_tokens = 200 + (67 * client + 41 * number) % 200
        async for _output in engine.generate(GenerationRequest(f"{client}-{number}", [1 + client] * 40, num_tokens)):
            pass


def tokens_over_time(batch_size: int, k: int | None) -> list[tuple[float, int]]:
    """Return the times and the numbers of new tokens, with a constant K, or with the controller if it is None."""
    arrived: list[tuple[float, int]] = []

    async def main() -> None:
        engine = ScriptedEngine(times=TIMES, max_num_seqs=MAX_BATCH, num_speculative_tokens=MAX_K)
        await engine.start()
        loop = asyncio.get_running_loop()
        start = SpeculationSchedule.fixed(MAX_K if k is None else k, MAX_BATCH)
        control = engine.speculation
        assert control is not None
        control.set_lookup(start.lookup(MAX_BATCH))
        chooser = Controller(start, MAX_K, MAX_BATCH) if k is None else None

        def observe(step: EngineStep) -> None:
            arrived.append((loop.time(), step.num_tokens))
            schedule = chooser.observe(step, loop.time()) if chooser else None
            if schedule is not None:
                control.set_lookup(schedule.lookup(MAX_BATCH))

        engine.watch_steps(observe)
        clients = [asyncio.create_task(ask_on(engine, client)) for client in range(batch_size)]
        for acceptance in PHASES:
            engine.acceptance_rate = acceptance
            await asyncio.sleep(PHASE_S)
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
        await engine.stop()

    virtual_time.run(main())
    return arrived


def rate(arrived: list[tuple[float, int]], begin: float, end: float) -> float:
    return sum(num for at, num in arrived if begin <= at < end) / (end - begin)


@pytest.mark.parametrize("batch_size", [1, pytest.param(4, marks=pytest.mark.full), 16])
def test_the_controller_follows_the_text(batch_size: int) -> None:
    auto = tokens_over_time(batch_size, None)
    fixed = [tokens_over_time(batch_size, k) for k in range(MAX_K + 1)]
    for phase in range(len(PHASES)):
        begin, end = phase * PHASE_S + SETTLED_S, (phase + 1) * PHASE_S
        best = max(rate(each, begin, end) for each in fixed)
        assert rate(auto, begin, end) >= 0.95 * best, phase
    for at in range(int(len(PHASES) * PHASE_S - WINDOW_S) + 1):
        assert rate(auto, at, at + WINDOW_S) >= 0.95 * rate(fixed[0], at, at + WINDOW_S), at


@pytest.mark.parametrize(("goodput_of_operator", "k"), [(5.0, 2), (3.0, 1), (None, 1)])
def test_a_failed_change_returns_to_the_better_of_two_for_a_while(goodput_of_operator: float | None, k: int) -> None:
    """Those two are the operator's K, 2, and the K before the change, 1."""
    under_test = BatchSizeRange(4, 4, 2, hold_s=10.0, max_hold_s=15.0)
    for hold_s in (10.0, 15.0, 15.0):
        under_test.change_to(1)
        under_test.change_to(4)
        assert not under_test.judge_change(4.0, goodput_of_operator, now=5.0), "too few steps"
        for at in range(40):
            under_test.add_time(EngineStep(4, 8, 4.0, drafted=(4,) * 4, accepted=(1,) * 4), at)
        assert under_test.judge_change(4.0, goodput_of_operator, now=5.0)
        assert under_test.chosen_k == k
        assert under_test.is_held(4.9 + hold_s)
        assert not under_test.is_held(5.0 + hold_s)


def test_a_change_that_is_no_worse_stays() -> None:
    under_test = BatchSizeRange(4, 4, 2, hold_s=10.0, max_hold_s=160.0)
    under_test.change_to(4)
    for at in range(40):
        under_test.add_time(EngineStep(4, 8, 2.0, drafted=(4,) * 4, accepted=(1,) * 4), at)
    assert not under_test.judge_change(4.0, None, now=5.0)
    assert (under_test.chosen_k, under_test.check, under_test.is_held(5.0)) == (4, None, False)


@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 7, 16, 100])
def test_the_ranges_hold_each_batch_size_once(max_batch_size: int) -> None:
    ranges = split_batch_sizes(max_batch_size, {5})
    assert [size for first, last in ranges for size in range(first, last + 1)] == list(range(1, max_batch_size + 1))
    assert max_batch_size < 5 or 5 in [last for _, last in ranges]


def test_a_change_of_acceptance_ends_the_hold_of_a_failed_change() -> None:
    under_test = BatchSizeRange(4, 4, 2, hold_s=10.0, max_hold_s=160.0)
    under_test.change_to(4)
    for at in range(40):
        under_test.add_time(EngineStep(4, 8, 4.0, drafted=(4,) * 4, accepted=(1,) * 4), at)
    assert under_test.judge_change(4.0, None, now=5.0)
    assert under_test.is_held(14.0)
    under_test.forget_change()
    assert not under_test.is_held(14.0)


def times_of_change(rest: DraftRest, largest_k: int, until: int, begin: int = 0) -> list[int]:
    return [now for now in range(begin, until) if rest.observe(largest_k, float(now))]


def test_drafts_that_never_pay_are_tried_ever_more_rarely() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 0, 5000) == [60, 660, 720, 1920, 1980, 4380, 4440]
    assert rest.is_off


def test_drafts_that_pay_stay_on() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 2, 5000) == []
    assert times_of_change(rest, 0, 5050, 5000) == []
    assert times_of_change(rest, 1, 9000, 5050) == []


def test_a_start_without_drafts_tries_them_after_ten_minutes() -> None:
    rest = DraftRest()
    rest.switch_off(100.0)
    assert times_of_change(rest, 0, 800, 100) == [700, 760]


def test_a_clock_that_begins_at_zero_makes_no_difference() -> None:
    rest = DraftRest()
    rest.switch_off(0.0)
    assert times_of_change(rest, 0, 700) == [600, 660]


def test_drafts_that_paid_again_begin_with_the_short_time() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 0, 2000) == [60, 660, 720, 1920, 1980]
    times_of_change(rest, 3, 5000, 4380)
    assert times_of_change(rest, 0, 6000, 5000)[:2] == [5060, 5660]


def test_acceptance_that_changes_is_seen_within_a_dozen_drafts() -> None:
    rates = AcceptanceEstimates(2)
    assert rates.expected_length(0) == 1
    assert rates.expected_length(1) is None
    for at in range(2000):
        assert not rates.add(EngineStep(10, 26, drafted=(10, 10), accepted=(9, 7)), at / 100)
    assert rates.expected_length(2) == pytest.approx(1 + 0.9 + 0.7, abs=0.01)
    seen = [rates.add(EngineStep(1, 1, drafted=(1, 1), accepted=(int(at == 5), 0)), 20 + at / 100) for at in range(12)]
    assert sum(seen) == 1
    assert rates.expected_length(2) == pytest.approx(1.1, abs=0.15)


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.5, 0.85, 1.0])
def test_chance_is_rarely_taken_for_a_change(acceptance: float) -> None:
    rates, rng, num_seen = AcceptanceEstimates(1), random.Random(2), 0
    for at in range(10_000):
        is_accepted = rng.random() < acceptance
        num_seen += rates.add(EngineStep(1, 1 + is_accepted, drafted=(1,), accepted=(int(is_accepted),)), at / 30)
    assert num_seen <= 5


def test_a_change_that_is_reversed_restores_the_counts_before_it() -> None:
    rates, now = AcceptanceEstimates(1), 0.0
    for at in range(1000):
        now += 0.01
        rates.add(EngineStep(1, 1, drafted=(1,), accepted=(int(at % 10 < 8),)), now)
    for _ in range(2):
        for accepted in [0] * 60 + [1] * 60:
            now += 0.01
            rates.add(EngineStep(1, 1, drafted=(1,), accepted=(accepted,)), now)
        assert rates.expected_length(1) == pytest.approx(1.75, abs=0.05)


def test_positions_without_drafts_have_the_rate_of_the_one_before() -> None:
    rates = AcceptanceEstimates(3)
    for _ in range(10):
        rates.add(EngineStep(10, 15, drafted=(10,), accepted=(5,)), 1.0)
    assert rates.expected_length(3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_times_without_a_measurement_are_on_the_line_of_the_measured_ones() -> None:
    times = StepTimeEstimates()
    assert times.seconds(0) is None
    for k, seconds in ((0, 0.005), (1, 0.010), (3, 0.020)):
        for at in range(3):
            times.add(k, seconds, at)
    assert [times.seconds(k) for k in range(5)] == pytest.approx([0.005, 0.010, 0.015, 0.020, 0.025])
    assert times.age_s(3, 5.0) == 3.0
    assert times.age_s(4, 5.0) == float("inf")
