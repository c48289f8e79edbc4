"""Runners of two front ends on one engine: they ring each other, and a ring that is lost is made good."""

import asyncio

import pytest

from completion_server.scheduling.book import Book
from completion_server.scheduling.neighbours import LOOK_S, BoardNeighbours, Row
from completion_server.serving.runner import Runner
from loadtest.simulation import virtual_time
from loadtest.simulation.front_ends import MemoryBoard
from loadtest.simulation.virtual_time import LoopClock
from tests.support.cancels import cancel_and_wait
from tests.unit.serving.readers import ask

RING_S = 0.001
OCCUPIED = Row._fields.index("num_occupied")


@pytest.mark.parametrize(("is_lost", "most_s"), [(False, RING_S), (True, LOOK_S)])
def test_a_request_starts_when_another_front_end_frees_the_slot(is_lost: bool, most_s: float) -> None:
    async def main() -> float:
        board, runners, loop = MemoryBoard(2), list[Runner](), asyncio.get_running_loop()

        def ring(place: int) -> None:
            if not is_lost:
                loop.call_later(RING_S, runners[place].look_nowait)

        for place in range(2):
            book = Book(1, max_queued=10, neighbours=BoardNeighbours(board.at(place)))
            runners.append(Runner(book, LoopClock(), ring=ring))
        tasks = [asyncio.create_task(runner.run()) for runner in runners]
        await asyncio.sleep(0)
        first, second = ask("first", seconds=1.01), ask("second")
        runners[0].submit_nowait(first)
        runners[1].submit_nowait(second)
        for runner in runners:
            await runner.wait_idle()
        await asyncio.gather(*map(cancel_and_wait, tasks))
        assert first.reasons == second.reasons == ["stop"]
        assert second.marks.started is not None
        return second.marks.started - 1.01

    assert 0 <= virtual_time.run(main()) <= most_s + 1e-6


def test_a_runner_that_does_not_run_takes_no_ring() -> None:
    async def main() -> None:
        runner = Runner(Book(1, 1, neighbours=BoardNeighbours(MemoryBoard(2).at(0))), LoopClock())
        runner.look_nowait()
        assert runner.book.is_idle

    virtual_time.run(main())


@pytest.mark.parametrize(("num_slots", "at_once", "in_all"), [(8, 0, 1), (1, 2, 2)])
def test_events_of_a_turn_of_the_loop_are_told_together_unless_a_request_waits(
    num_slots: int, at_once: int, in_all: int
) -> None:
    async def main() -> None:
        board = MemoryBoard(2)
        runner = Runner(Book(num_slots, max_queued=10, neighbours=BoardNeighbours(board.at(0))), LoopClock())
        task = asyncio.create_task(runner.run())
        await asyncio.sleep(0)
        runner.submit_nowait(ask("before"))
        await runner.wait_idle()
        await asyncio.sleep(0)
        before = board.rows[0][0]
        for number in range(3):
            runner.submit_nowait(ask(f"r{number}"))
        assert board.rows[0][0] - before == at_once
        assert board.rows[0][OCCUPIED] == min(3, num_slots), "told at once"
        await asyncio.sleep(0)
        assert board.rows[0][0] - before == in_all
        await runner.wait_idle()
        await asyncio.sleep(0)
        assert board.rows[0][OCCUPIED] == 0
        await cancel_and_wait(task)

    virtual_time.run(main())
