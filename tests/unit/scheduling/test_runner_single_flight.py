"""The runner gives one generation to all requests that ask for the same answer."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core.clock import Deadline
from completion_server.core.errors import UnavailableError
from completion_server.core.events import Event, GenerationAborted, GenerationDiverged, GenerationJoined
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.scheduling.generation import Progress, PromptReady
from completion_server.scheduling.runner import Runner
from loadtest.simulation.virtual_time import LoopClock
from tests.support.examples import examples
from tests.unit.scheduling.subscribers import ScriptedRequest, ask, run, saying, typed

WHOLE = Usage(prompt_tokens=3, completion_tokens=4)
SHARED = Usage(prompt_tokens=3, completion_tokens=4, is_shared=True)


def same(request_id: str, **fields: Any) -> ScriptedRequest:
    """Return a request of a lane of its own; all of them ask for the same answer."""
    return ask(request_id, **{"prefix": "x", "answer_key": "x"} | fields)


def submit(runner: Runner, *requests: ScriptedRequest) -> None:
    for each in requests:
        runner.submit_nowait(each)


def test_requests_for_the_same_answer_cost_one_generation() -> None:
    emitted: list[Event] = []

    async def scenario(runner: Runner) -> None:
        requests = [same(f"r{i}") for i in range(5)]
        submit(runner, *requests)
        assert (runner.book.num_occupied, runner.book.num_joined) == (1, 4)
        await runner.wait_idle()
        assert [each.text for each in requests] == ["abcd"] * 5
        assert [each.reasons for each in requests] == [["stop"]] * 5
        assert [each.num_generations for each in requests] == [1, 0, 0, 0, 0]
        assert [each.usages for each in requests] == [[WHOLE]] + [[SHARED]] * 4
        assert LoopClock().now() == 1.0

    run(scenario, emit=emitted.append)
    assert emitted == [GenerationJoined(0)] * 4


def test_a_late_request_has_the_text_so_far_at_once() -> None:
    emitted: list[Event] = []

    async def scenario(runner: Runner) -> None:
        first, early, late = same("first"), same("early"), same("late")
        submit(runner, first, early)
        await asyncio.sleep(0.6)
        submit(runner, late)
        assert late.text == "ab"
        await runner.wait_idle()
        assert (first.text, early.text, late.text) == ("abcd", "abcd", "abcd")
        marks = early.marks
        assert (marks.started, marks.prompted, marks.first_output, marks.last_output) == (0.0, 0.0, 0.25, 1.0)
        assert marks.tokens_at_first_output == 1
        marks = late.marks
        assert (marks.started, marks.prompted, marks.first_output, marks.last_output) == (0.6, 0.6, 0.6, 1.0)
        assert marks.tokens_at_first_output == 2

    run(scenario, emit=emitted.append)
    assert emitted == [GenerationJoined(0), GenerationJoined(2)]


def test_requests_join_one_that_waits_for_a_slot() -> None:
    async def scenario(runner: Runner) -> None:
        busy, first, second = ask("busy"), same("first"), same("second")
        submit(runner, busy, first, second)
        await asyncio.sleep(0.5)
        assert (runner.book.num_queued, runner.book.num_joined) == (1, 1)
        await runner.wait_idle()
        assert (second.text, second.num_generations, second.marks.started) == ("abcd", 0, 1.0)
        assert LoopClock().now() == 2.0

    run(scenario, num_slots=1)


@pytest.mark.parametrize("how", ["cancelled", "superseded", "deadline"])
def test_a_generation_goes_on_for_those_that_still_need_it(how: str) -> None:
    emitted: list[Event] = []

    async def scenario(runner: Runner) -> None:
        deadline = {"deadline": Deadline(0.6)} if how == "deadline" else {}
        first, second, third = same("first", lane="user", **deadline), same("second"), same("third")
        submit(runner, first, second, third)
        await asyncio.sleep(0.6)
        if how == "cancelled":
            runner.cancel_nowait("first")
        elif how == "superseded":
            submit(runner, ask("newer", lane="user", sequence=1))
        assert (first.text, first.reasons, first.was_aborted) == ("ab", [how], False)
        assert first.usages == [Usage(prompt_tokens=3, completion_tokens=2, is_shared=True)]
        await runner.wait_idle()
        assert (second.text, third.text) == ("abcd", "abcd")
        assert (second.usages, third.usages) == ([WHOLE], [SHARED])
        assert (second.num_generations, third.num_generations, first.was_aborted) == (0, 0, False)

    run(scenario, emit=emitted.append)
    assert not any(isinstance(event, GenerationAborted) for event in emitted)


def test_the_generation_is_aborted_when_the_last_reader_leaves() -> None:
    async def scenario(runner: Runner) -> None:
        requests = [same(f"r{i}") for i in range(3)]
        submit(runner, *requests)
        await asyncio.sleep(0.3)
        for each in ("r1", "r0", "r2"):
            assert not requests[0].was_aborted
            runner.cancel_nowait(each)
            await asyncio.sleep(0)
        await runner.wait_idle()
        assert requests[0].was_aborted
        assert [each.reasons for each in requests] == [["cancelled"]] * 3
        assert LoopClock().now() == pytest.approx(0.3)

    run(scenario)


def test_an_ended_reader_is_forgotten_although_the_generation_goes_on() -> None:
    async def scenario(runner: Runner) -> None:
        requests = [same(f"r{i}") for i in range(3)]
        submit(runner, *requests)
        await asyncio.sleep(0.3)
        runner.cancel_nowait("r1")
        runner.cancel_nowait("r0")
        assert (runner.num_held, runner.book.num_live, runner.book.num_occupied) == (1, 1, 1)
        await runner.wait_idle()
        assert requests[-1].text == "abcd"

    run(scenario)


def test_a_failure_of_the_engine_ends_all_readers_alike() -> None:
    async def scenario(runner: Runner) -> None:
        async def failing() -> AsyncGenerator[Progress]:
            yield PromptReady(3, 3)
            await asyncio.sleep(0.1)
            yield Output("a", 1)
            raise UnavailableError("away", retry_after_ms=70)

        requests = [same(f"r{i}", script=failing) for i in range(3)]
        submit(runner, *requests)
        await runner.wait_idle()
        assert [each.reasons for each in requests] == [["error"]] * 3
        assert {id(each.ends[0].error) for each in requests} == {id(requests[0].ends[0].error)}
        assert [each.ends[0].retry_after_ms for each in requests] == [70] * 3

    run(scenario)


@pytest.mark.parametrize(
    ("fault", "number"), [(fault, number) for fault in ("receive", "finish", "end") for number in (0, 1)]
)
def test_a_reader_that_fails_does_not_disturb_the_others(fault: str, number: int) -> None:
    async def scenario(runner: Runner) -> None:
        requests = [same(f"r{i}") for i in range(3)]
        requests[number].fault = fault
        submit(runner, *requests)
        await runner.wait_idle()
        failed = requests.pop(number)
        assert failed.reasons == ["stop" if fault == "end" else "error"]
        assert [each.reasons for each in requests] == [["stop"]] * 2
        assert [each.text for each in requests] == ["abcd"] * 2
        assert sum(each.num_generations for each in [failed, *requests]) == 1

    run(scenario)


def test_a_late_reader_that_fails_ends_alone() -> None:
    async def scenario(runner: Runner) -> None:
        first, late = same("first"), same("late")
        late.fault = "receive"
        submit(runner, first)
        await asyncio.sleep(0.3)
        submit(runner, late)
        assert late.reasons == ["error"]
        await runner.wait_idle()
        assert (first.reasons, first.text) == (["stop"], "abcd")

    run(scenario)


def test_the_others_read_on_if_the_first_user_types_along() -> None:
    async def scenario(runner: Runner) -> None:
        first, other, newer = typed(1, "x", answer_key="x"), same("other"), typed(2, "xab", answer_key="xab")
        submit(runner, first, other)
        await asyncio.sleep(0.3)
        submit(runner, newer, late := same("late"))
        assert (first.reasons, late.text) == (["superseded"], "a")
        await runner.wait_idle()
        assert (newer.text, other.text, late.text) == ("cd", "abcd", "abcd")
        assert (first.num_generations, newer.num_generations, other.num_generations) == (1, 0, 0)
        assert (newer.usages, other.usages) == ([WHOLE], [SHARED])

    run(scenario)


def test_a_user_who_has_joined_can_type_along_too() -> None:
    async def scenario(runner: Runner) -> None:
        first, older, newer = same("first"), typed(1, "x", answer_key="x"), typed(2, "xab", answer_key="xab")
        submit(runner, first, older)
        await asyncio.sleep(0.3)
        submit(runner, newer)
        assert (older.reasons, older.usages) == (["superseded"], [Usage()])
        await runner.wait_idle()
        assert (first.text, newer.text, newer.num_generations) == ("abcd", "cd", 0)
        assert newer.usages == [SHARED]

    run(scenario)


@pytest.mark.parametrize("leads", [True, False])
def test_a_user_who_types_something_else_gets_a_generation_and_the_others_read_on(leads: bool) -> None:
    emitted: list[Event] = []

    async def scenario(runner: Runner) -> None:
        older, other = typed(1, "x", answer_key="x"), same("other")
        newer = typed(2, "xaq", answer_key="xaq", script=saying("n", "e", "w"))
        submit(runner, *((older, other) if leads else (other, older)))
        submit(runner, newer)
        await asyncio.sleep(0.6)
        assert (runner.book.num_occupied, runner.book.num_joined) == (2, 0)
        await runner.wait_idle()
        assert (newer.text, newer.num_generations, newer.marks.started) == ("new", 1, 0.5)
        assert (other.text, other.usages, newer.usages) == ("abcd", [WHOLE], [Usage(3, 0, 3)])

    run(scenario, emit=emitted.append)
    assert emitted[-1] == GenerationDiverged(0)


def test_a_reader_whose_answer_is_complete_ends_and_the_others_read_on() -> None:
    class Brief(ScriptedRequest):
        def finish(self, reason: FinishReason | None) -> Outcome | None:
            return Outcome(FinishReason.STOP) if len(self.text) >= 2 else super().finish(reason)

    async def scenario(runner: Runner) -> None:
        requests = [same(f"r{i}") for i in range(4)]
        for number in (0, 2):
            requests[number] = Brief(requests[number].entry, requests[number].script)
        submit(runner, *requests)
        await asyncio.sleep(0.6)
        assert [each.reasons for each in requests] == [["stop"], [], ["stop"], []]
        await runner.wait_idle()
        assert [each.text for each in requests] == ["ab", "abcd", "ab", "abcd"]
        assert [each.usages[0].is_shared for each in requests] == [True, False, True, True]
        assert not requests[0].was_aborted

    run(scenario)


def test_no_request_joins_a_generation_that_stops() -> None:
    async def scenario(runner: Runner) -> None:
        async def lets_go_slowly() -> AsyncGenerator[Progress]:
            try:
                yield PromptReady(3, 3)
                yield Output("ab", 1, "stop")
            finally:
                await asyncio.sleep(1)

        first, late = same("first", script=lets_go_slowly), same("late")
        submit(runner, first)
        await asyncio.sleep(0.5)
        submit(runner, late)
        await runner.wait_idle()
        assert (late.text, late.num_generations) == ("abcd", 1)

    run(scenario)


def test_a_request_inside_the_last_end_gets_a_generation() -> None:
    async def scenario(runner: Runner) -> None:
        class AsksAgain(ScriptedRequest):
            def end(self, outcome: Outcome, usage: Usage) -> None:
                super().end(outcome, usage)
                submit(runner, again)

        first, second, again = same("first"), same("second"), same("again")
        submit(runner, first, AsksAgain(second.entry, second.script))
        await runner.wait_idle()
        assert (first.reasons, again.reasons, again.text, again.num_generations) == (["stop"], ["stop"], "abcd", 1)

    run(scenario)


def test_requests_and_cancels_inside_an_end_meet_each_output_once() -> None:
    """The end of one reader cancels the next two, one of which has the slot by then, and asks the same again."""

    async def scenario(runner: Runner) -> None:
        class Reacts(ScriptedRequest):
            def finish(self, reason: FinishReason | None) -> Outcome | None:
                return Outcome(FinishReason.STOP) if self.text else super().finish(reason)

            def end(self, outcome: Outcome, usage: Usage) -> None:
                super().end(outcome, usage)
                runner.cancel_nowait("r0")
                runner.cancel_nowait("r2")
                submit(runner, late)

        requests = [same(f"r{i}") for i in range(4)]
        requests[1] = Reacts(requests[1].entry, requests[1].script)
        late = same("late")
        submit(runner, *requests)
        await runner.wait_idle()
        assert [each.text for each in requests] == ["", "a", "", "abcd"]
        assert (late.text, late.reasons, late.num_generations) == ("abcd", ["stop"], 0)
        assert [each.reasons for each in requests] == [["cancelled"], ["stop"], ["cancelled"], ["stop"]]

    run(scenario)


def test_all_can_be_ended_at_once() -> None:
    async def scenario(runner: Runner) -> None:
        requests = [ask("busy", seconds=9), *(same(f"r{i}", seconds=9) for i in range(4))]
        submit(runner, *requests, *(same(f"w{i}", answer_key="y", prefix="y") for i in range(3)))
        await asyncio.sleep(1)
        runner.end_all_nowait(Outcome(FinishReason.CANCELLED))
        await runner.wait_idle()
        assert LoopClock().now() == 1.0
        assert [each.reasons for each in requests] == [["cancelled"]] * 5

    run(scenario)


WORDS = {"x": "abcd", "xa": "bcd", "xab": "cd", "xq": "abcd"}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["", "", "", "", "receive", "finish", "end"]),
        st.sampled_from(["ann", "bob", "cem", "dan"]),
        st.sampled_from(Trigger),
        st.sampled_from(sorted(WORDS)),
        st.none() | st.integers(0, 11),
        st.sampled_from([0.0, 0.0, 0.3, 0.5, 2.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.integers(1, 2))
@settings(max_examples=examples(4))
def test_any_requests_cancels_and_faults_leave_one_end_and_a_whole_text(
    steps: list[tuple[str, str, Trigger, str, int | None, float]], num_slots: int
) -> None:
    async def scenario(runner: Runner) -> None:
        asked = []
        for number, (fault, user, trigger, prefix, cancelled, pause_s) in enumerate(steps):
            fields = {"lane": user, "session": user, "sequence": number, "trigger": trigger, "prefix": prefix}
            request = ask(f"r{number}", answer_key=prefix, script=saying(*WORDS[prefix]), **fields)
            request.fault = fault
            asked.append(request)
            submit(runner, request)
            if cancelled is not None:
                runner.cancel_nowait(f"r{cancelled}")
            await asyncio.sleep(pause_s)
        await runner.wait_idle()
        assert [len(each.ends) for each in asked] == [1] * len(asked)
        for each in asked:
            whole = WORDS[each.entry.continuation.prefix] if each.entry.continuation is not None else ""
            assert whole.startswith(each.text), "text that is not the answer's, or twice"
            assert each.text == whole or each.reasons != ["stop"], "text is missing"

    run(scenario, num_slots=num_slots)
