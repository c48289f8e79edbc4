"""The capacity benchmark: the texts and the judgement of trials, rounds on scripted servers, and the report."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from loadtest.bench.capacity import (
    OURS,
    PROMISED_SHARE,
    VLLM,
    VLLM_SAME_PROMPTS,
    AnswerablePauses,
    ContextSize,
    Key,
    Rounds,
    crossing,
    first_sessions,
    headline,
    judge,
    key_of,
    only,
    pauses_of,
    picture,
    run_round,
    with_sliding_window,
)
from loadtest.bench.runner.benchmark import for_json
from loadtest.driving.driver import Run
from loadtest.search import Trial
from loadtest.targets.record import Outcome, Result
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


def test_a_clients_window_slides_and_keeps_the_text_around_the_cursor(trace: Trace) -> None:
    sent = with_sliding_window(trace, TINY)
    for theirs, whole in zip(sent.sessions, trace.sessions, strict=True):
        for cut, full in zip((theirs.opening, *theirs.requests), (whole.opening, *whole.requests), strict=True):
            assert (cut.prefix, cut.suffix) == (full.prefix[-50:], full.suffix[:20])
            assert full.truth.startswith(cut.truth)
            assert cut == replace(full, text=cut.text, end=cut.end)
    chosen = {key_of(each) for session in first_sessions(trace, 2, 4.0).sessions for each in session.requests}
    found = [each for session in only(sent, chosen).sessions for each in session.requests]
    assert {key_of(each) for each in found} == chosen
    assert all(len(each.prefix) == 50 for each in found), "in the form that the client sends"


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
    assert not judge(10, run, {(0, 2), (0, 4)}, 0.51).is_passed


async def test_a_pause_counts_if_any_server_answers_it_and_is_asked_once(trace: Trace) -> None:
    keys, asked = sorted(pauses_of(trace)), list[list[Key]]([[], []])

    def idle(number: int, answers: Sequence[Key]) -> object:
        async def replay(pauses: Collection[Key]) -> set[Key]:
            asked[number] += pauses
            return set(answers) & set(pauses)

        return replay

    pauses = AnswerablePauses([idle(0, keys[::2]), idle(1, keys[:3])])  # type: ignore[list-item]
    small, expected = first_sessions(trace, 2, 6.0), {*keys[::2], *keys[:3]}
    assert await pauses.of(small) == pauses_of(small) & expected
    assert [await pauses.of(trace) for _ in range(2)] == [expected] * 2
    assert sorted(asked[0]) == keys
    assert sorted(asked[1]) == keys[1::2], "only those that the first did not answer"


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

    async def capacities(self, number: int, before: dict[str, list[float]], most: int) -> dict[str, float]:
        found = await run_round(number, list(self.serves), before, (8, most), self.run)
        return {name: crossing(trials) for name, trials in found.items()}


async def test_a_round_finds_the_number_at_which_the_promise_breaks_in_turns() -> None:
    # 90% are answered in time at twice the number up to which all are.
    found = await Servers(small=1.5, middle=13, large=50).capacities(0, {}, 500)
    assert found == pytest.approx({"small": 3, "middle": 26, "large": 100}, rel=0.1)
    assert await Servers(strong=10_000, weak=0.001).capacities(0, {}, 100) == {"strong": 100, "weak": 0}
    alike = Servers(a=50, b=50, c=50)
    await alike.capacities(1, {}, 500)
    order = "".join(name for name, _sessions in alike.calls)
    assert order == "bca" * (len(order) // 3), "the order rotates from round to round"


@pytest.mark.parametrize("before", [[60.0, 100.0], [45.0]])
async def test_later_rounds_search_around_the_capacity_of_the_earlier_ones(before: list[float]) -> None:
    servers = Servers(one=40)
    assert (await servers.capacities(1, {"one": before}, 500))["one"] == pytest.approx(80, rel=0.05)
    assert len(servers.calls) <= 5
    assert servers.calls[0] == ("one", round(math.exp(sum(map(math.log, before)) / len(before))))


def rounds(*served: tuple[int, int, int]) -> Rounds:
    """Return searches of three contestants that end at these numbers of editors."""
    found: Rounds = {OURS: [], VLLM: [], VLLM_SAME_PROMPTS: []}
    for numbers in served:
        for own, passes in zip(found.values(), numbers, strict=True):
            lag = {"lag_ms_p99": 1.0}
            last = Trial(passes, True, {"share": 0.9} | lag), Trial(2 * passes, False, {"share": 0.2} | lag)
            own.append(last)
    return found


def test_the_headline_has_the_editors_and_the_ratios_of_pairs_with_intervals() -> None:
    short = rounds((40, 20, 30), (44, 22, 33), (36, 18, 27))
    both = {"short": short, "long": rounds((30, 10, 31), (32, 11, 30), (28, 9, 29))}
    figures = for_json(headline(both))
    assert figures["editors_short"] == pytest.approx(39.9, abs=0.1)
    assert figures["editors_short_vllm_serve"] == pytest.approx(figures["editors_short"] / 2, abs=0.1)
    assert figures["ratio_short"] == figures["ratio_short_low"] == figures["ratio_short_high"] == pytest.approx(2)
    assert figures["ratio_short_same_prompts"] == pytest.approx(4 / 3, abs=0.001)
    assert figures["ratio_long_low"] < 3 < figures["ratio_long_high"]
    assert "ratio_long_llama_cpp" not in figures, "it did not take part"
    one = {"short": rounds((40, 20, 30))}
    assert for_json(headline(one))["ratio_short_low"] is None, "one round has no interval"
    one["short"][VLLM] = [(Trial(1, False, {"share": 0.0, "lag_ms_p99": 1.0}),)]
    assert for_json(headline(one))["ratio_short"] == 80, "finite for a server that serves nobody"
    assert all(name in picture(both) for name in (OURS, VLLM, "400 + 100 char", "1,500 + 400 char"))
