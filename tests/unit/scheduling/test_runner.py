"""The runner: what the book decides is carried out, and nothing is left behind."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from completion_server.core.clock import Deadline
from completion_server.core.errors import Code, UnavailableError
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.book import Book
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.limiter import Limiter
from completion_server.scheduling.runner import Runner
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from tests.unit.scheduling.queue_entries import STOPPED, entry


@dataclass
class Job:
    """Work that a test scripts."""

    entry: QueueEntry
    script: Callable[[], Coroutine[Any, Any, Outcome | None]]
    matches: bool = False
    ends: list[Outcome] = field(default_factory=list)
    taken_over: list[str] = field(default_factory=list)
    num_runs: int = 0
    was_cancelled: bool = False

    def can_take_over(self, _other: "Job") -> bool:
        return self.matches

    def take_over(self, other: "Job") -> None:
        assert not other.ends
        self.taken_over.append(other.entry.id)

    async def run(self) -> Outcome | None:
        self.num_runs += 1
        try:
            return await self.script()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    def end(self, outcome: Outcome) -> None:
        self.ends.append(outcome)

    @property
    def reasons(self) -> list[str]:
        return [end.reason.value for end in self.ends]


def job(
    request_id: str, *, seconds: float = 1.0, result: Outcome | None = STOPPED, matches: bool = False, **fields: Any
) -> Job:
    async def script() -> Outcome | None:
        await asyncio.sleep(seconds)
        return result

    return Job(entry(request_id, **fields), script, matches)


def key(sequence: int, **fields: Any) -> Job:
    """Return one of a user's requests."""
    return job(f"r{sequence}", lane="user", sequence=sequence, **fields)


def run(scenario: Callable[[Runner], Coroutine[Any, Any, None]], *, num_slots: int = 2, **options: Any) -> None:
    """Run a scenario in virtual time, and check that it leaves nothing behind."""

    async def main() -> None:
        runner = Runner(Book(num_slots, max_queued=10), LoopClock(), **options)
        task = asyncio.create_task(runner.run())
        await asyncio.sleep(0)
        await scenario(runner)
        await runner.wait_idle()
        assert (runner.book.num_live, runner.book.num_occupied, runner.book.num_queued) == (0, 0, 0)
        assert not {*runner._tasks, *runner._owners, *runner._works, *runner._aborted_at}
        task.cancel()
        await asyncio.wait([task])

    virtual_time.run(main())


def test_work_waits_for_a_slot_and_ends_once() -> None:
    async def scenario(runner: Runner) -> None:
        jobs = [job(f"r{i}") for i in range(5)]
        for each in jobs:
            runner.submit_nowait(each)
        await runner.wait_idle()
        assert [each.reasons for each in jobs] == [["stop"]] * 5
        assert LoopClock().now() == 3.0  # five seconds of work on two slots

    run(scenario)


def test_a_newer_request_ends_the_older_at_once_and_runs_when_its_work_has_stopped() -> None:
    async def scenario(runner: Runner) -> None:
        stopping = asyncio.Event()

        async def slow_to_stop() -> Outcome:
            try:
                await asyncio.sleep(10)
            finally:
                await stopping.wait()
            return STOPPED

        older, newer = key(1), key(2)
        older.script = slow_to_stop
        runner.submit_nowait(older)
        await asyncio.sleep(0.1)
        runner.submit_nowait(newer)
        assert older.reasons == ["superseded"]
        await asyncio.sleep(1)
        assert newer.reasons == []
        assert runner.book.num_queued == 1
        stopping.set()
        await runner.wait_idle()
        assert (older.reasons, newer.reasons) == (["superseded"], ["stop"])

    run(scenario, num_slots=1)


def test_work_that_is_taken_over_goes_on_and_its_outcome_is_the_heirs() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = key(1), key(2, matches=True)
        runner.submit_nowait(older)
        await asyncio.sleep(0.25)
        runner.submit_nowait(newer)
        assert (older.reasons, newer.taken_over, runner.book.num_occupied) == (["superseded"], ["r1"], 1)
        await runner.wait_idle()
        assert (newer.reasons, newer.num_runs, older.num_runs) == (["stop"], 0, 1)
        assert not older.was_cancelled
        assert LoopClock().now() == 1.0

    run(scenario)


def test_work_is_handed_on_from_heir_to_heir() -> None:
    async def scenario(runner: Runner) -> None:
        jobs = [key(0), *(key(sequence, matches=True) for sequence in range(1, 5))]
        for each in jobs:
            runner.submit_nowait(each)
        await runner.wait_idle()
        assert [each.reasons for each in jobs] == [["superseded"]] * 4 + [["stop"]]
        assert [each.taken_over for each in jobs] == [[], ["r0"], ["r1"], ["r2"], ["r3"]]
        assert [each.num_runs for each in jobs] == [1, 0, 0, 0, 0]

    run(scenario)


def test_nothing_is_taken_over_where_that_is_not_wanted() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = key(1), key(2, matches=True)
        runner.submit_nowait(older)
        await asyncio.sleep(0.25)
        runner.submit_nowait(newer, takes_over=False)
        await runner.wait_idle()
        assert (older.was_cancelled, newer.taken_over, newer.num_runs) == (True, [], 1)

    run(scenario)


def test_cancelling_the_heir_cancels_the_work_and_cancelling_the_older_one_nothing() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = key(1), key(2, matches=True)
        runner.submit_nowait(older)
        await asyncio.sleep(0.25)
        runner.submit_nowait(newer)
        runner.cancel_nowait("r1")
        await asyncio.sleep(0.25)
        assert not older.was_cancelled
        runner.cancel_nowait("r2")
        await runner.wait_idle()
        assert (older.was_cancelled, newer.reasons) == (True, ["cancelled"])
        assert LoopClock().now() == 0.5

    run(scenario)


def test_a_deadline_of_the_heirs_ends_the_work_that_it_took_over() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = key(1, seconds=100), key(2, seconds=100, matches=True, deadline=Deadline(0.5))
        runner.submit_nowait(older)
        await asyncio.sleep(0.25)
        runner.submit_nowait(newer)
        await runner.wait_idle()
        assert (newer.reasons, older.was_cancelled, LoopClock().now()) == (["deadline"], True, 0.5)

    run(scenario)


def test_an_heir_that_can_not_use_what_it_took_over_begins_anew() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = key(1, result=None), key(2, matches=True)
        runner.submit_nowait(older)
        runner.submit_nowait(newer)
        await asyncio.sleep(1.5)
        assert (newer.num_runs, newer.reasons, runner.book.num_occupied) == (1, [], 1)
        await runner.wait_idle()
        assert (older.reasons, newer.reasons) == (["superseded"], ["stop"])
        assert LoopClock().now() == 2.0

    run(scenario)


def test_an_heir_that_begins_anew_waits_behind_a_better_one() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer = key(1, result=None), key(2, matches=True)
        runner.submit_nowait(older)
        runner.submit_nowait(newer)
        runner.submit_nowait(job("asked", trigger=Trigger.EXPLICIT))
        await asyncio.sleep(1.5)
        assert (newer.num_runs, runner.book.num_queued) == (0, 1)
        await runner.wait_idle()
        assert newer.reasons == ["stop"]

    run(scenario, num_slots=1)


def test_an_heir_that_was_ended_while_its_work_let_go_does_not_begin_anew() -> None:
    async def scenario(runner: Runner) -> None:
        async def lets_go_slowly() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await asyncio.sleep(1)  # and returns, as if it had diverged

        older, newer = key(1), key(2, matches=True)
        older.script = lets_go_slowly
        runner.submit_nowait(older)
        await asyncio.sleep(0.1)
        runner.submit_nowait(newer)
        runner.cancel_nowait("r2")
        await runner.wait_idle()
        assert (newer.reasons, newer.num_runs) == (["cancelled"], 0)

    run(scenario)


def test_it_is_told_how_long_aborted_work_went_on() -> None:
    stopped: list[float] = []

    async def scenario(runner: Runner) -> None:
        async def slow_to_stop() -> Outcome:
            try:
                await asyncio.sleep(10)
            finally:
                await asyncio.sleep(0.25)
            return STOPPED

        slow = job("slow")
        slow.script = slow_to_stop
        for each in (slow, job("quick", seconds=10), job("unscathed")):
            runner.submit_nowait(each)
        await asyncio.sleep(0.5)
        runner.cancel_nowait("quick")
        runner.cancel_nowait("slow")
        await runner.wait_idle()

    run(scenario, num_slots=3, on_stopped=stopped.append)
    assert stopped == [0.0, 0.25]


def test_slots_follow_the_limiter() -> None:
    async def scenario(runner: Runner) -> None:
        jobs = [job(f"r{i}", seconds=10) for i in range(6)]
        for each in jobs:
            runner.submit_nowait(each)
        assert runner.book.num_occupied == 2
        for _ in range(200):
            runner.step_nowait(0.01)
        assert runner.book.num_occupied == runner.book.num_slots == 4
        for _ in range(200):
            runner.step_nowait(0.1)
        assert (runner.book.num_occupied, runner.book.num_slots) == (4, 1)

    run(scenario, limiter=Limiter(1, 4, 1.0, 3.0))


def test_a_first_token_is_told_to_the_book() -> None:
    async def scenario(runner: Runner) -> None:
        runner.submit_nowait(job("r"))
        await asyncio.sleep(0.25)
        runner.first_token_nowait("r")
        assert runner.book.latency.first_token.mean == 0.25

    run(scenario)


def test_a_deadline_ends_what_runs_and_what_waits() -> None:
    async def scenario(runner: Runner) -> None:
        runs = job("runs", seconds=100, deadline=Deadline(2.0))
        waits = job("waits", seconds=100, deadline=Deadline(1.0))
        runner.submit_nowait(runs)
        runner.submit_nowait(waits)
        await asyncio.sleep(1.0)
        assert waits.reasons == ["deadline"]
        await runner.wait_idle()
        assert LoopClock().now() == 2.0
        assert (runs.reasons, waits.reasons) == (["deadline"], ["deadline"])
        assert runs.was_cancelled

    run(scenario, num_slots=1)


def test_who_is_out_of_time_is_shed_when_that_shows_and_not_later() -> None:
    async def scenario(runner: Runner) -> None:
        runs = job("runs", seconds=10)
        waits = job("waits", ttft_deadline=0.5)
        runner.submit_nowait(runs)
        await asyncio.sleep(0.125)
        runner.first_token_nowait("runs")
        runner.submit_nowait(waits)
        await asyncio.sleep(0.249)
        assert waits.reasons == []
        await asyncio.sleep(0.002)  # 0.375 is 0.125 before its time
        assert waits.reasons == ["shed"]
        await runner.wait_idle()
        assert runs.reasons == ["stop"]

    run(scenario, num_slots=1)


def test_work_that_is_cancelled_before_its_first_step_frees_its_slot() -> None:
    async def scenario(runner: Runner) -> None:
        first = job("first")
        runner.submit_nowait(first)
        runner.cancel_nowait("first")
        runner.cancel_nowait("first")
        await runner.wait_idle()
        assert first.reasons == ["cancelled"]

    run(scenario)


def test_one_requests_failure_is_its_own() -> None:
    async def scenario(runner: Runner) -> None:
        async def expected() -> Outcome:
            raise UnavailableError("away", retry_after_ms=70)

        async def bug() -> Outcome:
            raise ZeroDivisionError

        told, failed, fine = job("told"), job("failed"), job("fine")
        told.script, failed.script = expected, bug
        for each in (told, failed, fine):
            runner.submit_nowait(each)
        await runner.wait_idle()
        assert (told.reasons, failed.reasons, fine.reasons) == (["error"], ["error"], ["stop"])
        error = told.ends[0].error
        assert error is not None
        assert (error.code, told.ends[0].retry_after_ms) == (Code.UNAVAILABLE, 70)
        hidden = failed.ends[0].error
        assert hidden is not None
        assert "Zero" not in hidden.message

    run(scenario)


def test_an_end_that_can_not_be_told_holds_nobody_up() -> None:
    async def scenario(runner: Runner) -> None:
        class Deaf(Job):
            def end(self, outcome: Outcome) -> None:
                super().end(outcome)
                raise ZeroDivisionError

        deaf, other = Deaf(entry("deaf"), job("").script), job("other")
        runner.submit_nowait(deaf)
        runner.submit_nowait(other)
        await runner.wait_idle()
        assert (deaf.reasons, other.reasons) == (["stop"], ["stop"])

    run(scenario, num_slots=1)


def test_all_can_be_ended_at_once() -> None:
    async def scenario(runner: Runner) -> None:
        jobs = [job(f"r{i}", seconds=100) for i in range(4)]
        for each in jobs:
            runner.submit_nowait(each)
        await asyncio.sleep(1)
        runner.end_all_nowait(Outcome(FinishReason.CANCELLED))
        await runner.wait_idle()
        assert [each.reasons for each in jobs] == [["cancelled"]] * 4
        assert LoopClock().now() == 1.0

    run(scenario)


def test_nothing_is_taken_in_by_a_runner_that_does_not_run() -> None:
    with pytest.raises(RuntimeError):
        Runner(Book(1, 1), LoopClock()).submit_nowait(job("r"))
