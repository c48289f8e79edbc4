"""The runner hands a generation over to the newer request that its text fits, and begins another where it diverges."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from completion_server.core.clock import Deadline
from completion_server.core.events import Event, GenerationDiverged, GenerationReattached
from completion_server.core.outcome import Usage
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.scheduling.generation import Progress, PromptReady
from completion_server.scheduling.runner import Runner
from loadtest.simulation.virtual_time import LoopClock
from tests.unit.scheduling.subscribers import ask, key, run, saying, typed


def test_a_generation_goes_on_for_the_request_that_reattaches() -> None:
    emitted: list[Event] = []

    async def scenario(runner: Runner) -> None:
        older, newer = typed(1, "x"), typed(2, "xab")
        runner.submit_nowait(older)
        await asyncio.sleep(0.3)  # "a" was generated
        runner.submit_nowait(newer)
        assert (older.reasons, older.usages, runner.book.num_occupied) == (["superseded"], [Usage()], 1)
        await runner.wait_idle()
        assert (newer.reasons, newer.text, newer.num_generations, older.num_generations) == (["stop"], "cd", 0, 1)
        assert newer.usages == [Usage(prompt_tokens=3, completion_tokens=4)]
        assert (newer.marks.started, newer.marks.first_output, newer.marks.last_output) == (0.3, 0.75, 1.0)
        assert newer.marks.tokens_at_first_output == 3
        assert not older.was_aborted
        assert LoopClock().now() == 1.0

    run(scenario, emit=emitted.append)
    assert emitted == [GenerationReattached(1)]


def test_a_waiting_prefetch_that_would_say_the_same_is_superseded() -> None:
    async def scenario(runner: Runner) -> None:
        busy, prefetch = ask("busy"), ask("p", lane="user", trigger=Trigger.PREFETCH, prefix="x")
        other, newer = ask("o", lane="other", trigger=Trigger.PREFETCH, prefix="x"), typed(2, "xa")
        for each in (busy, prefetch, other, newer):
            runner.submit_nowait(each)
        assert (prefetch.reasons, other.reasons) == (["superseded"], [])
        await runner.wait_idle()
        assert (newer.text, prefetch.num_generations) == ("abcd", 0)

    run(scenario, num_slots=1)


def test_text_generated_after_the_typed_text_is_received_at_once() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = typed(1, "x"), typed(2, "xa")
        runner.submit_nowait(older)
        await asyncio.sleep(0.8)  # "abc" was generated
        runner.submit_nowait(newer)
        assert (older.text, newer.text, newer.marks.first_output) == ("abc", "bc", 0.8)

    run(scenario)


def test_requests_reattach_one_after_another() -> None:
    async def scenario(runner: Runner) -> None:
        requests = [typed(sequence, "x" + "abcd"[:sequence]) for sequence in range(4)]
        for each in requests:
            runner.submit_nowait(each)
        await runner.wait_idle()
        assert [each.reasons for each in requests] == [["superseded"]] * 3 + [["stop"]]
        assert [each.num_generations for each in requests] == [1, 0, 0, 0]
        assert requests[-1].text == "d"

    run(scenario)


def test_a_request_without_a_continuation_does_not_reattach() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = typed(1, "x"), key(2)
        runner.submit_nowait(older)
        await asyncio.sleep(0.25)
        runner.submit_nowait(newer)
        await runner.wait_idle()
        assert (older.was_aborted, newer.num_generations, newer.text) == (True, 1, "abcd")

    run(scenario)


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


def test_the_deadline_of_a_reattached_request_ends_the_generation() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = typed(1, "x", seconds=100), typed(2, "xa", deadline=Deadline(0.5))
        runner.submit_nowait(older)
        await asyncio.sleep(0.25)
        runner.submit_nowait(newer)
        await runner.wait_idle()
        assert (newer.reasons, older.was_aborted, LoopClock().now()) == (["deadline"], True, 0.5)

    run(scenario)


def test_a_request_whose_generation_diverges_begins_another() -> None:
    emitted: list[Event] = []

    async def scenario(runner: Runner) -> None:
        older, newer = typed(1, "x"), typed(2, "xaq", script=saying("n", "e", "w"))
        runner.submit_nowait(older)
        runner.submit_nowait(newer)
        await asyncio.sleep(0.6)  # "ab" was generated, not "aq"
        assert (newer.num_generations, newer.reasons, runner.book.num_occupied) == (1, [], 1)
        await runner.wait_idle()
        assert (older.reasons, newer.reasons, newer.text) == (["superseded"], ["stop"], "new")
        assert newer.marks.started == 0.5
        assert LoopClock().now() == pytest.approx(1.5)

    run(scenario, emit=emitted.append)
    assert emitted == [GenerationReattached(0), GenerationDiverged(2)]


def test_a_request_whose_generation_diverged_waits_behind_a_better_one() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = typed(1, "x"), typed(2, "xq")
        runner.submit_nowait(older)
        runner.submit_nowait(newer)
        runner.submit_nowait(ask("explicit", trigger=Trigger.EXPLICIT))
        await asyncio.sleep(0.5)
        assert (newer.num_generations, runner.book.num_queued) == (0, 1)
        await runner.wait_idle()
        assert newer.reasons == ["stop"]

    run(scenario, num_slots=1)


def test_a_request_that_ended_while_its_diverged_generation_stopped_does_not_begin_another() -> None:
    async def scenario(runner: Runner) -> None:
        async def lets_go_slowly() -> AsyncGenerator[Progress]:
            try:
                yield PromptReady(3, 3)
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

    run(scenario)


def test_no_request_reattaches_to_a_generation_that_is_over() -> None:
    async def scenario(runner: Runner) -> None:
        async def lets_go_slowly() -> AsyncGenerator[Progress]:
            try:
                yield PromptReady(3, 3)
                yield Output("ab", 1, "stop")
            finally:
                await asyncio.sleep(1)

        older, newer = typed(1, "x", script=lets_go_slowly), typed(2, "xa")
        runner.submit_nowait(older)
        await asyncio.sleep(0.5)
        runner.submit_nowait(newer)
        await runner.wait_idle()
        assert (newer.text, newer.num_generations) == ("abcd", 1)

    run(scenario)
