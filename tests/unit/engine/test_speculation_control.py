"""The server chooses K: on a pure machine of steps, and on the scripted engine in virtual time."""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.engine.interface import GenerationRequest, Step
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.speculation.controller import Controller
from completion_server.speculation.estimators import Acceptance, StepTimes, Trial
from completion_server.speculation.schedule import Schedule, parse_schedule
from loadtest.simulation import virtual_time

MAX_BATCH = 32


class Unchanging(Controller):
    """Leaves the operator's table in force."""

    def hear(self, _step: Step, _now: float) -> None:
        """Change nothing."""


@dataclass
class Machine:
    """Takes steps of one batch size, and does what a controller says."""

    controller: Controller
    step_s: Callable[[int], float]
    """How long a step takes with K."""
    acceptance: float = 0.8
    batch_size: int = 4
    kinds: tuple[float, ...] = ()
    """Where there are any, each completion draws its acceptance from these instead."""
    writing: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By place in the batch: acceptance of the completion there, and how many tokens it still needs."""
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    changes: list[tuple[float, int]] = field(default_factory=list)
    time_with: dict[int, float] = field(default_factory=dict)

    def run(self, seconds: float) -> float:
        """Return the tokens a second over so many seconds."""
        k = self.controller.schedule.num_draft_tokens(self.batch_size)
        num_tokens, began_at = 0, self.now
        while self.now < began_at + seconds:
            step = self._step(k)
            num_tokens += step.num_tokens
            schedule = self.controller.hear(step, self.now)
            if schedule is not None:
                k = schedule.num_draft_tokens(self.batch_size)
                self.changes.append((self.now, k))
        return num_tokens / (self.now - began_at)

    def _step(self, k: int) -> Step:
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
        return Step(self.batch_size, num_tokens, took_s, False, (self.batch_size,) * k, tuple(accepted))

    def _writing(self, place: int) -> tuple[float, int]:
        if not self.kinds:
            return self.acceptance, 0
        acceptance, num_left = self.writing.get(place, (0.0, 0))
        if num_left > 0:
            return acceptance, num_left
        return self.rng.choice(self.kinds), self.rng.randint(15, 45)


def expected(acceptance: float, k: int) -> float:
    return sum(acceptance**i for i in range(k + 1))


def controller(table_k: int = 4, ceiling: int = 6) -> Controller:
    return Controller(Schedule.fixed(table_k, MAX_BATCH), ceiling, MAX_BATCH)


def linear(k: int) -> float:
    return 0.010 + 0.003 * k


@pytest.mark.parametrize("table_k", [0, 2, 6])
@pytest.mark.parametrize("acceptance", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("batch_size", [1, 4, 20])
def test_it_finds_what_pays_from_any_table(table_k: int, acceptance: float, batch_size: int) -> None:
    machine = Machine(controller(table_k), linear, acceptance, batch_size)
    machine.run(20)
    best = max(expected(acceptance, k) / linear(k) for k in range(7))
    assert machine.run(60) > 0.95 * batch_size * best


def test_acceptance_is_not_what_counts() -> None:
    """Each draft token is likely to be accepted, and still costs more than it brings."""
    machine = Machine(controller(4), lambda k: 0.010 * (1 + 1.2 * k), acceptance=0.9, batch_size=16)
    machine.run(20)
    assert machine.run(20) > 0.95 * 16 / 0.010


def test_bursts_take_no_more_than_their_share() -> None:
    machine = Machine(controller(3), linear, acceptance=0.75)
    machine.run(10)
    before = dict(machine.time_with)
    machine.run(100)
    spent = sorted(took_s - before.get(k, 0.0) for k, took_s in machine.time_with.items())
    assert sum(spent[:-1]) < 0.04 * 100


def test_it_stays_where_little_is_to_be_gained() -> None:
    machine = Machine(controller(3), linear, acceptance=0.75)
    machine.run(30)
    settled = machine.controller._ranges[3].k
    changes = 0
    for _ in range(60):
        machine.run(1)
        now = machine.controller._ranges[3].k
        changes += now != settled
        settled = now
    assert changes <= 4


def test_where_a_change_makes_it_worse_the_table_holds() -> None:
    """What is on no line can't be foreseen: from 4 on, a draft takes ten times as long."""
    machine = Machine(controller(2), lambda k: 0.010 + 0.001 * k + (0.05 if k > 3 else 0.0), acceptance=0.95)
    machine.run(30)
    assert machine.run(60) > 0.93 * 4 * expected(0.95, 3) / 0.013


def test_a_failed_trial_brings_the_table_back_for_a_while() -> None:
    under_test = controller(2)
    each = under_test._ranges[3]
    for k, seconds in ((1, 0.011), (2, 0.012), (4, 0.014)):
        for _ in range(5):
            each.times.add(k, seconds, 0.0)
    for _ in range(50):
        under_test._acceptance.add(Step(4, 8, drafted=(4, 4, 4, 4), accepted=(2, 1, 1, 0)), 0.0)
    each.k, each.trial = 4, Trial(1)
    for _ in range(40):
        each.trial.add(Step(4, 8, seconds=1.0))
    each.num_steps = 100
    under_test._decide(each, now=5.0)
    assert each.k == each.table_k == 2
    assert each.held_until == 15.0
    each.num_steps = 100
    under_test._decide(each, now=14.0)
    assert each.k == 2


def test_the_same_steps_give_the_same_schedules() -> None:
    runs = []
    for _ in range(2):
        machine = Machine(controller(5), linear, acceptance=0.4)
        machine.run(20)
        runs.append(machine.changes)
    assert runs[0] == runs[1]
    assert runs[0]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    num_seqs = draw(st.integers(1, 40))
    drafted = sorted(draw(st.lists(st.integers(1, num_seqs), max_size=4)), reverse=True)
    accepted: list[int] = []
    for most in drafted:
        accepted.append(draw(st.integers(0, min([most, *accepted[-1:]]))))
    seconds = draw(st.none() | st.floats(1e-4, 0.5))
    tokens = num_seqs + sum(accepted)
    return Step(num_seqs, tokens, seconds, draw(st.booleans()), tuple(drafted), tuple(accepted))


@given(st.lists(st.tuples(steps(), st.floats(0, 5)), max_size=60))
def test_whatever_it_hears_its_schedules_can_be_used(heard: list[tuple[Step, float]]) -> None:
    under_test, now = Controller(Schedule.fixed(2, MAX_BATCH), 4, MAX_BATCH), 0.0
    for step, pause_s in heard:
        now += pause_s
        under_test.hear(step, now)
        schedule = under_test.schedule
        assert parse_schedule(schedule.as_lists(), 4) == schedule


def test_the_ranges_hold_each_batch_size_once() -> None:
    for max_batch_size in (1, 2, 3, 7, 16, 100):
        under_test = Controller(Schedule.fixed(1, max_batch_size), 2, max_batch_size)
        sizes = [size for each in under_test._ranges for size in range(each.first, each.last + 1)]
        assert sizes == list(range(1, max_batch_size + 1))
        assert len(under_test._range_of) == max_batch_size + 1


def test_acceptance_that_changes_is_seen_within_a_dozen_drafts() -> None:
    rates = Acceptance(2)
    assert rates.expected_length(0) == 1
    assert rates.expected_length(1) is None
    for at in range(2000):
        assert not rates.add(Step(10, 26, drafted=(10, 10), accepted=(9, 7)), at / 100)
    assert rates.expected_length(2) == pytest.approx(1 + 0.9 + 0.7, abs=0.01)
    seen = [rates.add(Step(1, 1, drafted=(1, 1), accepted=(int(at == 5), 0)), 20 + at / 100) for at in range(12)]
    assert sum(seen) == 1
    assert rates.expected_length(2) == pytest.approx(1.1, abs=0.15)


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.5, 0.85, 1.0])
def test_chance_is_hardly_taken_for_a_change(acceptance: float) -> None:
    rates, rng, num_seen = Acceptance(1), random.Random(2), 0
    for at in range(10_000):
        is_accepted = rng.random() < acceptance
        num_seen += rates.add(Step(1, 1 + is_accepted, drafted=(1,), accepted=(int(is_accepted),)), at / 30)
    assert num_seen <= 5


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("kinds", [(0.1, 0.9), (0.3, 0.8)])
def test_completions_that_differ_are_no_change_after_change(batch_size: int, kinds: tuple[float, ...]) -> None:
    """Each completion is as predictable as it is: what pays is one K for all of them.

    Not all of it is had: what would not follow these at all would not follow a real fall either (the next test).
    """

    def tokens_per_s(choice: Controller) -> float:
        machine = Machine(choice, linear, batch_size=batch_size, kinds=kinds)
        machine.run(30)
        return machine.run(60)

    best = max(tokens_per_s(Unchanging(Schedule.fixed(k, MAX_BATCH), 6, MAX_BATCH)) for k in range(7))
    assert tokens_per_s(controller(4)) > 0.93 * best


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_fall_after_completions_that_differed_is_followed_too(seed: int) -> None:
    """They have taught it to doubt changes; not to sleep through one."""
    machine = Machine(controller(4), linear, batch_size=1, kinds=(0.1, 0.9), rng=random.Random(seed))
    machine.run(60)
    machine.kinds, machine.writing = (0.1,), {}
    for _ in range(3):
        assert machine.run(5) > 0.95 / linear(0)


def test_what_a_change_forgot_comes_back_once() -> None:
    rates = Acceptance(1)
    for at in range(1000):
        rates.add(Step(1, 1, drafted=(1,), accepted=(int(at % 10 < 8),)), at / 100)
    weight = rates._rates.reached[0]
    now = 10.0
    for accepted in (0, 1, 0, 1):
        for _ in range(60):
            now += 0.01
            rates.add(Step(1, 1, drafted=(1,), accepted=(accepted,)), now)
    assert rates._rates.reached[0] < weight + 240


def test_steps_with_generations_that_wanted_no_drafts_teach_no_times() -> None:
    under_test = controller(4)
    for at in range(100):
        under_test.hear(Step(1, 1, 0.02, has_undrafted=True), at / 50)
    assert under_test._ranges[0].times.seconds(0) is None


def test_the_operators_rows_are_kept_as_they_are() -> None:
    table = parse_schedule([[1, 5, 4], [6, MAX_BATCH, 0]], 6)
    assert Controller(table, 6, MAX_BATCH).chosen == Controller(table, 6, MAX_BATCH).schedule == table


def test_batch_sizes_that_are_not_about_follow_a_change() -> None:
    machine = Machine(controller(5), linear, acceptance=0.85)
    machine.run(20)
    assert machine.controller.schedule.num_draft_tokens(4) > 2
    machine.acceptance = 0.0
    machine.run(0.5)
    assert {each.k for each in machine.controller._ranges} == {0}


def test_a_change_ends_what_a_failed_trial_held() -> None:
    machine = Machine(controller(4), linear, acceptance=0.9, batch_size=4)
    machine.run(30)
    for each in machine.controller._ranges:
        each.k, each.held_until = 6, machine.now + 1000
    machine.acceptance = 0.02
    machine.run(20)
    assert machine.controller.schedule.num_draft_tokens(4) == 0


def test_acceptance_of_positions_that_were_not_drafted_is_that_of_those_before() -> None:
    rates = Acceptance(3)
    for _ in range(10):
        rates.add(Step(10, 15, drafted=(10,), accepted=(5,)), 1.0)
    assert rates.expected_length(3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_times_that_were_not_measured_are_on_the_line_of_those_that_were() -> None:
    times = StepTimes()
    assert times.seconds(0) is None
    for k, seconds in ((0, 0.005), (1, 0.010), (3, 0.020)):
        for at in range(3):
            times.add(k, seconds, at)
    assert [times.seconds(k) for k in range(5)] == pytest.approx([0.005, 0.010, 0.015, 0.020, 0.025])
    assert times.age_s(3, 5.0) == 3.0
    assert times.age_s(4, 5.0) == float("inf")


TIMES = ServiceTimes(
    prefill_base_s=1e-2, prefill_per_token_s=1e-4, decode_base_s=12e-3, decode_per_seq_s=1.4e-3,
    draft_s=4e-3, verify_per_token_s=2e-4,
)  # fmt: skip
"""The small model on two cores, four times slower: fewer steps to learn from."""
CEILING = 5
PHASES = (0.85, 0.1, 0.85)
"""Boilerplate, prose, boilerplate."""
PHASE_S = 75.0
SETTLED_S = 30.0
WINDOW_S = 5.0
"""A window begins with each phase, so that no gain before a change makes up for what is lost after it."""


async def ask_on(engine: ScriptedEngine, client: int) -> None:
    """Ask again and again, for so many tokens that clients don't go in step."""
    for number in itertools.count():
        num_tokens = 200 + (67 * client + 41 * number) % 200
        async for _output in engine.generate(GenerationRequest(f"{client}-{number}", [1 + client] * 40, num_tokens)):
            pass


def tokens_over_time(batch_size: int, k: int | None) -> list[tuple[float, int]]:
    """Return when which tokens came, with one K all along, or where it is None with what the controller says."""
    heard: list[tuple[float, int]] = []

    async def main() -> None:
        engine = ScriptedEngine(times=TIMES, max_num_seqs=MAX_BATCH, num_speculative_tokens=CEILING)
        await engine.start()
        loop = asyncio.get_running_loop()
        start = Schedule.fixed(CEILING if k is None else k, MAX_BATCH)
        engine.set_speculation(start)
        chooser = Controller(start, CEILING, MAX_BATCH) if k is None else None

        def hear(step: Step) -> None:
            heard.append((loop.time(), step.num_tokens))
            schedule = chooser.hear(step, loop.time()) if chooser else None
            if schedule is not None:
                engine.set_speculation(schedule)

        engine.watch_steps(hear)

        clients = [asyncio.create_task(ask_on(engine, client)) for client in range(batch_size)]
        for acceptance in PHASES:
            engine.acceptance_rate = acceptance
            await asyncio.sleep(PHASE_S)
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
        await engine.stop()

    virtual_time.run(main())
    return heard


def rate(heard: list[tuple[float, int]], begin: float, end: float) -> float:
    return sum(num for at, num in heard if begin <= at < end) / (end - begin)


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_it_follows_what_is_written(batch_size: int) -> None:
    auto = tokens_over_time(batch_size, None)
    fixed = [tokens_over_time(batch_size, k) for k in range(CEILING + 1)]
    for phase in range(len(PHASES)):
        begin, end = phase * PHASE_S + SETTLED_S, (phase + 1) * PHASE_S
        best = max(rate(each, begin, end) for each in fixed)
        assert rate(auto, begin, end) >= 0.95 * best, phase
    for at in range(int(len(PHASES) * PHASE_S - WINDOW_S) + 1):
        assert rate(auto, at, at + WINDOW_S) >= 0.95 * rate(fixed[0], at, at + WINDOW_S), at
