"""Exceptions inside one request's work: every request has one end, and no slot or task is left behind."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core.events import EngineStalled, Event
from completion_server.core.request import Trigger
from completion_server.scheduling.generation import Progress
from completion_server.scheduling.runner import Runner
from loadtest.simulation.virtual_time import LoopClock
from tests.support.examples import examples
from tests.unit.scheduling.subscribers import ask, key, run, typed


def test_a_reattach_that_raises_ends_its_request_and_aborts_the_generation() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer, waiting = typed(1, "x"), typed(2, "xa"), ask("waiting")
        newer.fault = "receive"
        runner.submit_nowait(older)
        await asyncio.sleep(0.6)  # "ab" was generated
        runner.submit_nowait(waiting)
        runner.submit_nowait(newer)
        assert (older.reasons, newer.reasons) == (["superseded"], ["error"])
        await runner.wait_idle()
        assert older.was_aborted
        assert (newer.num_generations, waiting.reasons) == (0, ["stop"])
        assert newer.ends[0].error is not None
        assert "Zero" not in newer.ends[0].error.message

    run(scenario, num_slots=1)


def test_an_engine_that_stands_still_is_reported_when_it_goes_on() -> None:
    stalls: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, EngineStalled):
            stalls.append(event.seconds)

    async def scenario(runner: Runner) -> None:
        for number in range(5):
            runner.submit_nowait(ask(f"r{number}", lane=f"r{number}"))
            await runner.wait_idle()
        estimate_s = runner.book.latency.first_token_s
        runner.submit_nowait(ask("late", seconds=40))
        await runner.wait_idle()
        assert runner.book.latency.first_token_s == pytest.approx(estimate_s)

    run(scenario, emit=note)
    assert stalls[0] == pytest.approx(10.0)


def test_a_reattach_that_raises_keeps_the_other_actions() -> None:
    """The newer request reattaches to the prefetch and supersedes the typed one, which must end all the same."""

    async def scenario(runner: Runner) -> None:
        older, newer = key(1, seconds=100), typed(2, "xa")
        prefetch = ask("p", lane="user", trigger=Trigger.PREFETCH, prefix="x")
        newer.fault = "receive"
        runner.submit_nowait(older)
        runner.submit_nowait(prefetch)
        await asyncio.sleep(0.6)
        runner.submit_nowait(newer)
        assert [each.reasons for each in (older, prefetch, newer)] == [["superseded"], ["superseded"], ["error"]]
        await runner.wait_idle()
        assert older.was_aborted
        assert LoopClock().now() < 1

    run(scenario)


def test_a_generation_that_can_not_start_ends_its_request_and_waiting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(runner: Runner) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("TaskGroup is shutting down")

        requests = [ask("running"), *(ask(f"r{i}") for i in range(9))]
        for each in requests:
            runner.submit_nowait(each)
        monkeypatch.setattr(asyncio.TaskGroup, "create_task", fail)
        await runner.wait_idle()
        monkeypatch.undo()
        assert [each.reasons for each in requests] == [["stop"]] + [["error"]] * 9

    run(scenario, num_slots=1)


def test_a_generation_that_can_not_start_ends_all_that_have_joined_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(runner: Runner) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("TaskGroup is shutting down")

        requests = [ask("busy"), *(ask(name, answer_key="x") for name in ("first", "second"))]
        for each in requests:
            runner.submit_nowait(each)
        monkeypatch.setattr(asyncio.TaskGroup, "create_task", fail)
        await runner.wait_idle()
        monkeypatch.undo()
        assert [each.reasons for each in requests] == [["stop"], ["error"], ["error"]]

    run(scenario, num_slots=1)


def test_a_source_that_raises_before_it_begins_is_the_requests_failure() -> None:
    async def scenario(runner: Runner) -> None:
        def fail() -> AsyncGenerator[Progress]:
            raise ZeroDivisionError

        broken, waiting = ask("broken"), ask("waiting")
        broken.generate = fail  # type: ignore[method-assign]
        runner.submit_nowait(broken)
        runner.submit_nowait(waiting)
        await runner.wait_idle()
        assert (broken.reasons, waiting.reasons) == (["error"], ["stop"])

    run(scenario, num_slots=1)


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["", "generate", "receive", "finish", "end"]),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(Trigger),
        st.sampled_from(["x", "xa", "xab", "xq", None]),
        st.sampled_from([0.0, 0.3, 0.5, 2.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(REQUESTS)
@settings(max_examples=examples(2))
def test_any_faults_leave_one_end_for_each_request(
    requests: list[tuple[str, str, Trigger, str | None, float]],
) -> None:
    async def scenario(runner: Runner) -> None:
        asked = []
        for number, (fault, user, trigger, prefix, pause_s) in enumerate(requests):
            fields = {"lane": user, "session": user, "sequence": number, "trigger": trigger, "prefix": prefix}
            request = ask(f"r{number}", **fields)
            request.fault = fault
            asked.append(request)
            runner.submit_nowait(request)
            await asyncio.sleep(pause_s)
        await runner.wait_idle()
        assert [len(each.ends) for each in asked] == [1] * len(asked)

    run(scenario)
