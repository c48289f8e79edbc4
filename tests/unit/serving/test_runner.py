"""The runner carries out the book's actions and leaves no task or request behind, also if a request's code fails."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from completion_server.core.clock import Deadline
from completion_server.core.errors import Code, UnavailableError
from completion_server.core.events import EngineStalled, Event, GenerationAborted
from completion_server.core.outcome import Outcome, Usage
from completion_server.engine.interface import Output
from completion_server.scheduling.book import Book
from completion_server.scheduling.limiter import ConcurrencyLimiter
from completion_server.serving.runner import Runner
from loadtest.simulation.virtual_time import LoopClock
from tests.unit.serving.readers import ask, key, run, saying, slow_to_abort, typed


def test_the_duration_of_an_abort_is_reported() -> None:
    emitted: list[Event] = []

    async def scenario(runner: Runner) -> None:
        slow = ask("slow", script=slow_to_abort(0.25))
        for each in (slow, ask("quick", seconds=10), ask("unscathed")):
            runner.submit_nowait(each)
        await asyncio.sleep(0.5)
        runner.cancel_nowait("quick")
        runner.cancel_nowait("slow")
        await runner.wait_idle()

    run(scenario, num_slots=3, emit=emitted.append)
    assert emitted == [GenerationAborted(0.0), GenerationAborted(0.25)]


def test_slots_follow_the_limiter() -> None:
    async def scenario(runner: Runner) -> None:
        quick = [ask(f"q{i}", script=saying(*"x" * 100, seconds=1.0)) for i in range(6)]
        for each in quick:
            runner.submit_nowait(each)
        assert runner.book.num_occupied == 2
        await asyncio.sleep(0.99)
        assert runner.book.num_occupied == runner.book.num_slots == 4
        await runner.wait_idle()
        for i in range(4):
            runner.submit_nowait(ask(f"s{i}", script=saying(*"x" * 100, seconds=10.0)))
        await runner.wait_idle()
        assert runner.book.num_slots == 1

    run(scenario, limiter=ConcurrencyLimiter(1, 4, 1.0, 3.0))


def test_a_deadline_ends_running_and_waiting_requests() -> None:
    async def scenario(runner: Runner) -> None:
        runs = ask("runs", seconds=100, deadline=Deadline(2.0))
        waits = ask("waits", seconds=100, deadline=Deadline(1.0))
        runner.submit_nowait(runs)
        runner.submit_nowait(waits)
        await asyncio.sleep(1.0)
        assert waits.reasons == ["deadline"]
        await runner.wait_idle()
        assert LoopClock().now() == 2.0
        assert (runs.reasons, waits.reasons) == (["deadline"], ["deadline"])
        assert runs.was_aborted

    run(scenario, num_slots=1)


def test_a_failure_ends_only_its_own_request() -> None:
    async def scenario(runner: Runner) -> None:
        async def expected() -> AsyncGenerator[Output | None]:
            yield None
            raise UnavailableError("away", retry_after_ms=70)

        async def bug() -> AsyncGenerator[Output | None]:
            yield None
            raise ZeroDivisionError

        async def silent() -> AsyncGenerator[Output | None]:
            yield None

        known, failed, ended, fine = (
            ask("known", script=expected),
            ask("bug", script=bug),
            ask("e", script=silent),
            ask("f"),
        )
        for each in (known, failed, ended, fine):
            runner.submit_nowait(each)
        await runner.wait_idle()
        assert [each.reasons for each in (known, failed, ended, fine)] == [["error"]] * 3 + [["stop"]]
        error = known.ends[0].error
        assert error is not None
        assert (error.code, known.ends[0].retry_after_ms) == (Code.UNAVAILABLE, 70)
        hidden = failed.ends[0].error
        assert hidden is not None
        assert "Zero" not in hidden.message

    run(scenario)


def test_submits_and_cancels_inside_an_end_are_carried_out_in_order() -> None:
    async def scenario(runner: Runner) -> None:
        order: list[str] = []

        class Reacts(type(ask("x"))):  # type: ignore[misc]
            def end(self, outcome: Outcome, usage: Usage) -> None:
                super().end(outcome, usage)
                order.append(self.live.id)
                if self.live.id == "r1":
                    runner.submit_nowait(third)
                    runner.cancel_nowait("other")
                    order.append("reacted")

        first, second, third, other = (
            Reacts(each.live, each.script) for each in (key(1), key(2), key(3), ask("other", seconds=5))
        )
        runner.submit_nowait(other)
        runner.submit_nowait(first)
        runner.submit_nowait(second)
        assert order[:2] == ["r1", "reacted"], "an end was reported inside another"
        assert sorted(order[2:]) == ["other", "r2"]
        await runner.wait_idle()
        assert [each.reasons for each in (first, second, third, other)] == [
            ["superseded"], ["superseded"], ["stop"], ["cancelled"],
        ]  # fmt: skip

    run(scenario)


def test_a_runner_that_does_not_run_refuses_requests() -> None:
    with pytest.raises(RuntimeError):
        Runner(Book(1, 1), LoopClock()).submit_nowait(ask("r"))


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


def test_a_generation_that_can_not_start_ends_its_request_and_waiting_ones() -> None:
    async def scenario(runner: Runner) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("TaskGroup is shutting down")

        joining = [ask(name, answer_key="x") for name in ("first", "second")]
        requests = [ask("running"), *(ask(f"r{i}") for i in range(7)), *joining]
        for each in requests:
            runner.submit_nowait(each)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.TaskGroup, "create_task", fail)
            await runner.wait_idle()
        assert [each.reasons for each in requests] == [["stop"]] + [["error"]] * 9

    run(scenario, num_slots=1)
