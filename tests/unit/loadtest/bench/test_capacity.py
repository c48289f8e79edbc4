"""The capacity benchmark: the texts and the judgement of trials, rounds on scripted servers, and the report."""

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from loadtest.bench.capacity import OURS, VLLM, VLLM_SAME_PROMPTS, Rounds, details, headline, picture
from loadtest.bench.capacity_trials import (
    PROMISED_SHARE,
    AnswerablePauses,
    ContextSize,
    Key,
    crossing,
    first_sessions,
    judge,
    key_of,
    only,
    pauses_of,
    replay_pauses,
    run_round,
    trial_s,
    with_sliding_window,
)
from loadtest.bench.runner.figures import for_json
from loadtest.driving.driver import Run
from loadtest.search import Trial
from loadtest.targets import Editor, TargetError
from loadtest.targets.record import Outcome, Record, Result
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace
from tests.unit.loadtest.typed import result

TINY = ContextSize("tiny", 50, 20)


@pytest.fixture(scope="module")
def trace() -> Trace:
    documents = {"prefix_chars": 400, "suffix_chars": 100}
    scenario = Scenario.of({"name": "capacity", "documents": documents, "sessions": 6, "duration_s": 12, "seed": 3})
    return make_trace(scenario)


def keys_of(trace: Trace) -> list[Key]:
    return [key_of(each) for session in trace.sessions for each in session.requests]


def test_a_trial_has_the_first_sessions_and_seconds_of_the_trace(trace: Trace) -> None:
    cut = first_sessions(trace, 4, 5.0)
    assert [each.number for each in cut.sessions] == [0, 1, 2, 3]
    assert cut.duration_s == 5.0
    for ours, whole in zip(cut.sessions, trace.sessions, strict=False):
        assert ours.requests == tuple(each for each in whole.requests if each.intended_at_s < 5.0)
        assert ours.opening == whole.opening


def test_a_clients_window_slides_and_keeps_the_text_around_the_cursor(trace: Trace) -> None:
    sent = with_sliding_window(trace, TINY)
    for theirs, whole in zip(sent.sessions, trace.sessions, strict=True):
        for cut, full in zip((theirs.opening, *theirs.requests), (whole.opening, *whole.requests), strict=True):
            assert cut.prefix == full.prefix[-50:]
            assert cut.suffix == full.suffix[:20]
            assert full.truth.startswith(cut.truth)
            assert (cut.intended_at_s, cut.next_key_at_s, key_of(cut)) == (
                full.intended_at_s, full.next_key_at_s, key_of(full)
            )  # fmt: skip


def test_chosen_requests_are_found_in_the_form_that_a_client_sends(trace: Trace) -> None:
    chosen = keys_of(first_sessions(trace, 2, 4.0))
    found = only(with_sliding_window(trace, TINY), chosen)
    assert keys_of(found) == chosen
    assert all(len(each.prefix) == 50 for session in found.sessions for each in session.requests)


def test_few_editors_are_tried_for_longer() -> None:
    assert [trial_s(each, 8, 0.25) for each in (1, 8, 16, 100)] == [24, 20, 10, 8]


def answer(
    sequence: int, ttft_s: float | None, outcome: Outcome = Outcome.ANSWERED, *, is_pause: bool = True
) -> Result:
    found = result(ttft_s, outcome=outcome, is_pause=is_pause)
    return replace(found, request=replace(found.request, sequence=sequence))


def test_only_pauses_that_can_be_answered_count() -> None:
    answers = [
        answer(2, 0.1),
        answer(3, 0.25),
        answer(4, 0.26),
        answer(5, None, Outcome.SHED),
        answer(6, 0.1),
        answer(7, None, Outcome.EMPTY),
        answer(8, 0.1, is_pause=False),
    ]
    run = Run(8.0, tuple(answers), 0.0)
    found = judge(10, run, {(0, number) for number in (2, 3, 4, 5, 8)}, 0.5)
    assert (found.sessions, found.is_passed) == (10, True)
    assert (found.figures["share"], found.figures["pauses"]) == (0.5, 4)
    assert (found.figures["missed_late"], found.figures["missed_shed"]) == (1, 1)
    assert not judge(10, run, {(0, 2), (0, 4)}, 0.51).is_passed


class Idle:
    """A replay that answers some pauses with text, and notes what it was asked."""

    def __init__(self, answers: Collection[Key]) -> None:
        self.answers = answers
        self.asked: list[Key] = []

    async def __call__(self, pauses: Collection[Key]) -> set[Key]:
        self.asked += pauses
        return {key for key in pauses if key in self.answers}


async def test_a_pause_counts_if_any_server_answers_it_and_is_asked_once(trace: Trace) -> None:
    keys = sorted(pauses_of(trace))
    first, second = Idle(keys[::2]), Idle(keys[:3])
    pauses = AnswerablePauses([first, second])
    small = first_sessions(trace, 2, 6.0)
    expected = set(keys[::2]) | set(keys[:3])
    assert await pauses.of(small) == pauses_of(small) & expected
    assert [await pauses.of(trace) for _ in range(2)] == [expected] * 2
    assert sorted(first.asked) == keys
    assert sorted(second.asked) == keys[1::2], "only those that the first did not answer"


class ScriptedTarget:
    """Answers each request by what a table says; openings are whole."""

    name = "scripted"
    num_connected = 0

    def __init__(self, texts: dict[int, str], error: str = "") -> None:
        self.reconnects_s: list[float] = []
        self.texts = texts
        self.error = error

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        yield [ScriptedEditor(self) for _ in trace.sessions]

    async def generated_tokens(self) -> float:
        return float("nan")


class ScriptedEditor:
    is_connected = True

    def __init__(self, target: ScriptedTarget) -> None:
        self.target = target

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        asyncio.get_running_loop().call_soon(self._answer, record, max_tokens == 1)

    def drop_nowait(self, host_shift: int | None = None) -> None:
        raise NotImplementedError

    def _answer(self, record: Record, is_opening: bool) -> None:
        if self.target.error and not is_opening:
            record.end(Outcome.ERROR, self.target.error)
            return
        record.text_came(self.target.texts.get(record.request.sequence, " "))
        record.end_whole()


async def test_a_replay_finds_the_pauses_with_visible_text(trace: Trace) -> None:
    one = first_sessions(trace, 1, 12.0)
    [session] = one.sessions
    spoken = {each.sequence: "text" for each in session.requests[::3]}
    assert await replay_pauses(ScriptedTarget(spoken), one) == {(session.number, number) for number in spoken}
    with pytest.raises(TargetError, match="no such model"):
        await replay_pauses(ScriptedTarget({}, error="no such model"), trace)


def trial(sessions: int, share: float) -> Trial:
    return Trial(sessions, share >= PROMISED_SHARE, {"share": share})


class Servers:
    """Servers of which each answers all pauses up to a number of editors, and fewer and fewer beyond it."""

    def __init__(self, **serves: float) -> None:
        self.serves = serves
        self.calls: list[tuple[str, int]] = []

    async def run(self, name: str, sessions: int) -> Trial:
        self.calls.append((name, sessions))
        return trial(sessions, min(1.0, 1.0 - 0.1 * math.log2(sessions / self.serves[name])))


async def capacities(servers: Servers, number: int, before: dict[str, list[float]], most: int) -> dict[str, float]:
    found = await run_round(number, list(servers.serves), before, (8, most), servers.run)
    return {name: crossing(trials) for name, trials in found.items()}


async def test_a_round_finds_the_number_at_which_the_promise_breaks() -> None:
    # 90% are answered in time at twice the number up to which all are.
    found = await capacities(Servers(small=1.5, middle=13, large=50), 0, {}, 500)
    assert found == pytest.approx({"small": 3, "middle": 26, "large": 100}, rel=0.1)
    extreme = Servers(strong=10_000, weak=0.001)
    assert await capacities(extreme, 0, {}, 100) == {"strong": 100, "weak": 0}
    assert {sessions for _name, sessions in extreme.calls} <= set(range(1, 101))


@pytest.mark.parametrize("before", [[80.0], [60.0, 100.0], [45.0]])
async def test_later_rounds_search_around_the_capacity_of_the_earlier_ones(before: list[float]) -> None:
    servers = Servers(one=40)
    found = await capacities(servers, 1, {"one": before}, 500)
    assert found["one"] == pytest.approx(80, rel=0.05)
    assert len(servers.calls) <= 5
    assert servers.calls[0] == ("one", round(math.exp(sum(map(math.log, before)) / len(before))))


async def test_contestants_take_turns_in_a_rotating_order() -> None:
    firsts = []
    for number in range(3):
        servers = Servers(a=50, b=50, c=50)
        await capacities(servers, number, {}, 500)
        order = [name for name, _sessions in servers.calls[:3]]
        assert sorted(order) == ["a", "b", "c"]
        assert [name for name, _sessions in servers.calls] == order * (len(servers.calls) // 3)
        firsts.append(order[0])
    assert firsts == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({8: 1.0, 16: 0.8}, 8 * math.sqrt(2)),
        ({8: 0.9, 16: 0.5}, 8),
        ({8: 1.0, 16: 0.95, 32: 0.0}, 16 * 2 ** (0.05 / 0.95)),
        ({8: 1.0, 16: 1.0}, 16),
        ({1: 0.0}, 0),
        ({4: 0.5, 8: 1.0, 16: 0.8}, 8 * math.sqrt(2)),  # an unlucky small trial does not count
    ],
)
def test_the_capacity_is_interpolated_between_the_bounds(shares: dict[int, float], expected: float) -> None:
    assert crossing([trial(sessions, share) for sessions, share in shares.items()]) == pytest.approx(expected)


def search(passes: int, lag_ms: float = 1.0) -> tuple[Trial, ...]:
    """Return a search that ends at a number of editors."""
    figures = {"pauses": 40.0, "lag_ms_p99": lag_ms}
    return (
        Trial(passes, True, {"share": 0.9} | figures),
        Trial(2 * passes, False, {"share": 0.2, "missed_late": 32.0} | figures),
    )


def rounds(*served: tuple[int, int, int]) -> Rounds:
    found: Rounds = {OURS: [], VLLM: [], VLLM_SAME_PROMPTS: []}
    for ours, vllm, same_prompts in served:
        for own, passes in zip(found.values(), (ours, vllm, same_prompts), strict=True):
            own.append(search(passes))
    return found


FOUND = {
    "short": rounds((40, 20, 30), (44, 22, 33), (36, 18, 27)),
    "long": rounds((30, 10, 31), (32, 11, 30), (28, 9, 29)),
}


def test_the_headline_has_the_editors_and_the_ratios_of_pairs_with_intervals() -> None:
    figures = for_json(headline(FOUND))
    assert figures["editors_short"] == pytest.approx(39.9, abs=0.1)
    assert figures["editors_short_vllm_serve"] == pytest.approx(figures["editors_short"] / 2, abs=0.1)
    assert figures["ratio_short"] == figures["ratio_short_low"] == figures["ratio_short_high"] == pytest.approx(2)
    assert figures["ratio_short_same_prompts"] == pytest.approx(4 / 3, abs=0.001)
    assert figures["ratio_long_low"] < 3 < figures["ratio_long_high"]
    assert figures["generator_lag_ms_p99"] == 1.0
    assert "ratio_long_llama_cpp" not in figures, "it did not take part"
    one = {"short": rounds((40, 20, 30))}
    assert for_json(headline(one))["ratio_short_low"] is None, "one round has no interval"
    none_served = {"short": {OURS: [search(10)], VLLM: [(Trial(1, False, {"share": 0.0, "lag_ms_p99": 1.0}),)]}}
    assert for_json(headline(none_served))["ratio_short"] == 20, "finite for a server that serves nobody"


def test_every_trial_is_in_the_details_and_every_contestant_in_the_picture() -> None:
    found = details(FOUND)["long"][VLLM]
    assert found["editors_by_round"] == pytest.approx([10, 11, 9], abs=0.1)
    assert [[each["editors"] for each in search] for search in found["trials"]] == [[10, 20], [11, 22], [9, 18]]
    assert found["trials"][0][1]["missed_late"] == 32
    svg = picture(FOUND)
    assert all(name in svg for name in (OURS, VLLM, VLLM_SAME_PROMPTS, "400 + 100 char", "1,500 + 400 char"))
