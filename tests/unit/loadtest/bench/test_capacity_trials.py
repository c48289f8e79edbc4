"""The texts and the judgement of the capacity benchmark's trials."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from loadtest.bench.capacity.answerable import AnswerablePauses, Replay, replay_pauses
from loadtest.bench.capacity.trials import (
    SHARE,
    ContextSize,
    Key,
    Promise,
    TrialLength,
    first_sessions,
    key_of,
    pauses_of,
    requests_like,
    with_sliding_window,
)
from loadtest.driving.driver import Run
from loadtest.targets import Editor, TargetError
from loadtest.targets.record import Outcome, Record, Result
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace
from tests.unit.loadtest.typed import result


@pytest.fixture(scope="module")
def trace() -> Trace:
    documents = {"prefix_chars": 400, "suffix_chars": 100}
    scenario = Scenario.of({"name": "capacity", "documents": documents, "sessions": 6, "duration_s": 12, "seed": 3})
    return make_trace(scenario)


def test_a_trial_has_the_first_sessions_and_seconds_of_the_trace(trace: Trace) -> None:
    cut = first_sessions(trace, 4, 5.0)
    assert [each.number for each in cut.sessions] == [0, 1, 2, 3]
    assert cut.duration_s == 5.0
    for ours, whole in zip(cut.sessions, trace.sessions, strict=False):
        assert ours.requests == tuple(each for each in whole.requests if each.intended_at_s < 5.0)
        assert ours.opening == whole.opening


def test_a_clients_window_slides_and_keeps_the_text_around_the_cursor(trace: Trace) -> None:
    sent = with_sliding_window(trace, ContextSize("tiny", 50, 20))
    for theirs, whole in zip(sent.sessions, trace.sessions, strict=True):
        for cut, full in zip((theirs.opening, *theirs.requests), (whole.opening, *whole.requests), strict=True):
            assert cut.prefix == full.prefix[-50:]
            assert cut.suffix == full.suffix[:20]
            assert full.truth.startswith(cut.truth)
            assert (cut.intended_at_s, cut.next_key_at_s, key_of(cut)) == (
                full.intended_at_s, full.next_key_at_s, key_of(full)
            )  # fmt: skip


def test_chosen_requests_are_found_in_the_form_that_a_client_sends(trace: Trace) -> None:
    chosen = first_sessions(trace, 2, 4.0)
    found = requests_like(chosen, with_sliding_window(trace, ContextSize("tiny", 50, 20)))
    asked = [key_of(each) for session in chosen.sessions for each in session.requests]
    assert [key_of(each) for session in found.sessions for each in session.requests] == asked
    assert all(len(each.prefix) == 50 for session in found.sessions for each in session.requests)


def test_few_editors_are_tried_for_longer() -> None:
    length = TrialLength(least_s=8, most_s=24, pauses=40, pauses_per_s=0.25)
    assert [length.seconds(each) for each in (1, 8, 16, 100)] == [24, 20, 10, 8]


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
    found = Promise(0.25, 0.5).judge(10, Run(8.0, tuple(answers), 0.0), {(0, number) for number in (2, 3, 4, 5, 8)})
    assert (found.sessions, found.is_passed) == (10, True)
    assert found.figures[SHARE] == 0.5
    assert found.figures["pauses"] == 4
    assert (found.figures["missed_late"], found.figures["missed_shed"]) == (1, 1)
    assert not Promise(0.25, 0.51).judge(10, Run(8.0, tuple(answers), 0.0), {(0, 2), (0, 4)}).is_passed


class Idle:
    """A replay that answers some pauses with text, and notes what it was asked."""

    def __init__(self, answers: Collection[Key]) -> None:
        self.answers = answers
        self.asked: list[Key] = []

    async def __call__(self, pauses: Trace) -> set[Key]:
        keys = [key_of(each) for session in pauses.sessions for each in session.requests]
        self.asked += keys
        return {key for key in keys if key in self.answers}


async def test_a_pause_counts_if_any_server_answers_it_and_is_asked_once(trace: Trace) -> None:
    keys = sorted(key_of(each) for each in pauses_of(trace))
    first, second = Idle(keys[::2]), Idle(keys[:3])
    replays: Sequence[Replay] = (first, second)
    pauses = AnswerablePauses(replays)
    small = first_sessions(trace, 2, 6.0)
    expected = set(keys[::2]) | set(keys[:3])
    assert await pauses.of(small) == {key_of(each) for each in pauses_of(small)} & expected
    assert await pauses.of(trace) == expected
    assert await pauses.of(trace) == expected
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


async def test_an_idle_server_that_fails_ends_the_benchmark(trace: Trace) -> None:
    with pytest.raises(TargetError, match="no such model"):
        await replay_pauses(ScriptedTarget({}, error="no such model"), trace)
