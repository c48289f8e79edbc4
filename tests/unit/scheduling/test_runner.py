"""The runner: what the book decides is carried out, and nothing is left behind."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.errors import Code, UnavailableError
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.book import Book, Claim
from completion_server.scheduling.runner import Runner
from tests.support import virtual_time
from tests.support.virtual_time import LoopClock

STOPPED = Outcome(FinishReason.STOP)


@dataclass
class Job:
    """Work that a test scripts."""

    claim: Claim
    script: Callable[[], Coroutine[Any, Any, Outcome]]
    ends: list[Outcome] = field(default_factory=list)
    was_cancelled: bool = False

    async def run(self) -> Outcome:
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


def job(request_id: str, *, lane: str = "", sequence: int = 0, seconds: float = 1.0, deadline: Deadline = NEVER) -> Job:
    async def script() -> Outcome:
        await asyncio.sleep(seconds)
        return STOPPED

    return Job(Claim(request_id, lane or request_id, "s", sequence, Trigger.AUTOMATIC, deadline), script)


def run(scenario: Callable[[Runner], Coroutine[Any, Any, None]], *, num_slots: int = 2) -> None:
    """Run a scenario in virtual time, and check that it leaves nothing behind."""

    async def main() -> None:
        runner = Runner(Book(num_slots, max_queued=10), LoopClock())
        task = asyncio.create_task(runner.run())
        await asyncio.sleep(0)
        await scenario(runner)
        await runner.wait_idle()
        assert (runner.book.num_live, runner.book.num_occupied, runner.book.num_queued) == (0, 0, 0)
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

        older, newer = job("old", lane="u", sequence=1), job("new", lane="u", sequence=2)
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


def test_a_deadline_ends_what_runs_and_what_waits() -> None:
    async def scenario(runner: Runner) -> None:
        runs = job("runs", seconds=100, deadline=Deadline(2.0))
        waits = job("waits", seconds=100, deadline=Deadline(1.0))
        runner.submit_nowait(runs)
        runner.submit_nowait(waits)
        await runner.wait_idle()
        assert LoopClock().now() == 2.0
        assert (runs.reasons, waits.reasons) == (["deadline"], ["deadline"])
        assert runs.was_cancelled

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
