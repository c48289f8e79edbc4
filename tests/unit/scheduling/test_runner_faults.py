"""Whatever raises inside one request's work: every request has one End, and no slot or task is left behind."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core.outcome import Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.runner import Runner
from loadtest.simulation.virtual_time import LoopClock
from tests.unit.scheduling.queue_entries import entry
from tests.unit.scheduling.test_runner import Job, job, key, run


class FailsToTakeOver(Job):
    """Takes over work of prefetches, and raises when it does."""

    def can_take_over(self, other: Job) -> bool:
        return other.entry.trigger is Trigger.PREFETCH

    def take_over(self, other: Job) -> None:
        super().take_over(other)
        raise ZeroDivisionError


def test_a_take_over_that_raises_ends_its_request_and_stops_the_work() -> None:
    async def scenario(runner: Runner) -> None:
        older, newer, waiting = key(1, trigger=Trigger.PREFETCH), key(2), job("waiting")
        newer = FailsToTakeOver(newer.entry, newer.script)
        runner.submit_nowait(older)
        await asyncio.sleep(0.1)
        runner.submit_nowait(waiting)
        runner.submit_nowait(newer)
        assert (older.reasons, newer.reasons) == (["superseded"], ["error"])
        await runner.wait_idle()
        assert older.was_cancelled
        assert (newer.num_runs, waiting.reasons) == (0, ["stop"])
        assert newer.ends[0].error is not None
        assert "Zero" not in newer.ends[0].error.message

    run(scenario, num_slots=1)


def test_a_take_over_that_raises_keeps_the_other_actions() -> None:
    """The newer request takes the prefetch's work and unseats the typed one: that must end and stop all the same."""

    async def scenario(runner: Runner) -> None:
        typed, prefetch, newer = key(1, seconds=100), job("p", lane="user", trigger=Trigger.PREFETCH), key(2)
        newer = FailsToTakeOver(newer.entry, newer.script)
        runner.submit_nowait(typed)
        runner.submit_nowait(prefetch)
        await asyncio.sleep(0.1)
        runner.submit_nowait(newer)
        assert [each.reasons for each in (typed, prefetch, newer)] == [["superseded"], ["superseded"], ["error"]]
        await runner.wait_idle()
        assert typed.was_cancelled
        assert LoopClock().now() < 1

    run(scenario)


def test_work_that_can_not_begin_ends_its_request_and_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(runner: Runner) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("TaskGroup is shutting down")

        assert runner._group is not None
        jobs = [job("running"), *(job(f"r{i}") for i in range(9))]
        for each in jobs:
            runner.submit_nowait(each)
        monkeypatch.setattr(runner._group, "create_task", fail)
        await runner.wait_idle()
        assert [each.reasons for each in jobs] == [["stop"]] + [["error"]] * 9

    run(scenario, num_slots=1)


@dataclass
class Faulty(Job):
    """Raises where it is told to."""

    fault: str = ""

    def take_over(self, other: Job) -> None:
        super().take_over(other)
        if self.fault == "take over":
            raise ZeroDivisionError

    async def run(self) -> Outcome | None:
        outcome = await super().run()
        if self.fault == "run":
            raise ZeroDivisionError
        return outcome

    def end(self, outcome: Outcome) -> None:
        super().end(outcome)
        if self.fault == "end":
            raise ZeroDivisionError


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["", "take over", "run", "end"]),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(Trigger),
        st.booleans(),
        st.sampled_from([0.0, 0.5, 2.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(REQUESTS)
@settings(max_examples=150, deadline=None)
def test_any_faults_leave_one_end_for_each_request(
    requests: list[tuple[str, str, Trigger, bool, float]],
) -> None:
    async def scenario(runner: Runner) -> None:
        jobs = []
        for number, (fault, user, trigger, matches, pause_s) in enumerate(requests):
            asked = entry(f"r{number}", lane=user, session=user, sequence=number, trigger=trigger)
            jobs.append(Faulty(asked, job("").script, matches, fault=fault))
            runner.submit_nowait(jobs[-1])
            await asyncio.sleep(pause_s)
        await runner.wait_idle()
        assert [len(each.ends) for each in jobs] == [1] * len(jobs)

    run(scenario)
