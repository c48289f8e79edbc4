"""The runner gives one generation to all requests that read it: after a reattach, and for the same answer."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core.errors import UnavailableError
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.serving.runner import Runner
from loadtest.simulation.virtual_time import LoopClock
from tests.support.examples import examples
from tests.unit.serving.readers import ScriptedReader, ask, run, saying, typed


def test_cancelling_a_reattached_request_aborts_the_generation_and_cancelling_the_older_one_nothing() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = typed(1, "x"), typed(2, "xa")
        runner.submit_nowait(older)
        await asyncio.sleep(0.25)
        runner.submit_nowait(newer)
        runner.cancel_nowait("r1")
        await asyncio.sleep(0.25)
        assert not older.was_aborted
        runner.cancel_nowait("r2")
        await runner.wait_idle()
        assert (older.was_aborted, newer.reasons) == (True, ["cancelled"])
        assert LoopClock().now() == 0.5

    run(scenario)


def test_a_request_that_ended_while_its_diverged_generation_stopped_does_not_begin_another() -> None:
    async def scenario(runner: Runner) -> None:
        async def lets_go_slowly() -> AsyncGenerator[Output | None]:
            try:
                yield None
                await asyncio.sleep(0.25)
                yield Output("b", 1)
            finally:
                with contextlib.suppress(asyncio.CancelledError):  # as a library might
                    await asyncio.sleep(1)

        older, newer = typed(1, "x", script=lets_go_slowly), typed(2, "xq")
        runner.submit_nowait(older)
        runner.submit_nowait(newer)
        await asyncio.sleep(0.5)  # it diverged, and is letting go
        runner.cancel_nowait("r2")
        await runner.wait_idle()
        assert (newer.reasons, newer.num_generations, newer.usages) == (["cancelled"], 0, [Usage()])

    run(scenario, num_slots=1)


def same(request_id: str, **fields: Any) -> ScriptedReader:
    """Return a request of a lane of its own; all of them ask for the same answer."""
    return ask(request_id, **{"prefix": "x", "answer_key": "x"} | fields)


def submit(runner: Runner, *requests: ScriptedReader) -> None:
    for each in requests:
        runner.submit_nowait(each)


def test_a_failure_of_the_engine_ends_all_readers_alike() -> None:
    async def scenario(runner: Runner) -> None:
        async def failing() -> AsyncGenerator[Output | None]:
            yield None
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
        assert failed.text == ("abcd" if fault == "end" else "a")
        assert [each.reasons for each in requests] == [["stop"]] * 2
        assert [each.text for each in requests] == ["abcd"] * 2
        assert sum(each.num_generations for each in [failed, *requests]) == 1

    run(scenario)


def test_requests_and_cancels_inside_an_end_meet_each_output_once() -> None:
    """The end of one reader cancels two others, one of which leads, and asks the same again."""

    async def scenario(runner: Runner) -> None:
        class Reacts(ScriptedReader):
            def finish(self, reason: FinishReason | None) -> Outcome | None:
                return Outcome(FinishReason.STOP) if self.text else super().finish(reason)

            def end(self, outcome: Outcome, usage: Usage) -> None:
                super().end(outcome, usage)
                runner.cancel_nowait("r0")
                runner.cancel_nowait("r2")
                submit(runner, late)

        requests = [same(f"r{i}") for i in range(4)]
        requests[1] = Reacts(requests[1].live, requests[1].script)
        late = same("late")
        submit(runner, *requests)
        await runner.wait_idle()
        assert [each.text for each in requests] == ["a", "a", "a", "abcd"]
        assert (late.text, late.reasons, late.num_generations) == ("abcd", ["stop"], 0)
        assert [each.reasons for each in requests] == [["cancelled"], ["stop"], ["cancelled"], ["stop"]]

    run(scenario)


WORDS = {"x": "abcd", "xa": "bcd", "xab": "cd", "xq": "abcd"}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["", "", "", "", "generate", "receive", "finish", "end"]),
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
            fields: dict[str, Any] = {
                "lane": user,
                "session": user,
                "sequence": number,
                "trigger": trigger,
                "prefix": prefix,
            }
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
            whole = WORDS[each.live.continuation.prefix] if each.live.continuation is not None else ""
            assert whole.startswith(each.text), "text that is not the answer's, or twice"
            assert each.text == whole or each.reasons != ["stop"], "text is missing"

    run(scenario, num_slots=num_slots)
