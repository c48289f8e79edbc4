"""The board in shared memory, between real processes."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from completion_server.scheduling.book import Book
from completion_server.scheduling.neighbours import BoardNeighbours, Row
from completion_server.state.local.slots import SlotBoard
from tests.unit.scheduling.live_requests import live

_SPAWN = multiprocessing.get_context("spawn")


NUM_PLACES = 4
WITHIN_S = 60.0
"""For the start of a process on machines that are busy with other things."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    SlotBoard(tmp_path / "slots", 0, NUM_PLACES, is_new=True)
    return tmp_path / "slots"


def test_a_front_end_sees_the_rows_of_the_others_and_not_its_own(path: Path) -> None:
    first, second = (SlotBoard(path, place, NUM_PLACES) for place in (0, 3))
    first.write(Row(version=1, num_slots=8, head_class=2, head_order=0.1))
    assert first.others() == []
    [(place, values)] = second.others()
    assert (place, Row._make(values)) == (0, Row(1, 8, head_class=2, head_order=0.1))
    first.put(Row._fields.index("num_occupied"), 5)
    assert second.others()[0][1][:3] == (1, 8, 5)
    second.clear(0)
    assert second.others() == []


def _take_a_slot(path: Path, place: int, pipe: Connection) -> None:
    """Be a front end: take a slot, let a request wait, and say so; then look when told."""
    book = Book(1, 10, neighbours=BoardNeighbours(SlotBoard(path, place, NUM_PLACES)))
    pipe.send(book.submit(live("first", lane="1"), 0.0) + book.submit(live("second", lane="2"), 0.0))
    book.publish(0.0)
    pipe.send(None)
    while pipe.recv():
        pipe.send(book.look(0.0))


def _receive(pipe: Connection) -> Any:
    assert pipe.poll(WITHIN_S), f"the other process sent nothing within {WITHIN_S} s"
    return pipe.recv()


def test_two_processes_share_one_slot_and_the_parent_frees_that_of_a_dead_one(path: Path) -> None:
    pipe, child_pipe = _SPAWN.Pipe()
    child = _SPAWN.Process(target=_take_a_slot, args=(path, 0, child_pipe))
    child.start()
    assert [action.id for action in _receive(pipe)] == ["first"]
    assert _receive(pipe) is None
    board = SlotBoard(path, 1, NUM_PLACES)
    book = Book(1, 10, neighbours=BoardNeighbours(board))
    assert book.submit(live("third"), 0.0) == [], "the slot is taken elsewhere"
    book.publish(0.0)
    pipe.send(True)
    assert _receive(pipe) == []
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(WITHIN_S)
    assert book.look(0.0) == [], "its place is not cleared yet"
    board.clear(0)
    assert [action.id for action in book.look(0.0)] == ["third"]


def test_the_board_outlives_a_process_that_was_attached(path: Path) -> None:
    child = _SPAWN.Process(target=_write_and_end, args=(path, 2))
    child.start()
    child.join(WITHIN_S)
    assert child.exitcode == 0
    assert SlotBoard(path, 0, NUM_PLACES).others()[0][1][:2] == (1, 7)


def _write_and_end(path: Path, place: int) -> None:
    SlotBoard(path, place, NUM_PLACES).write(Row(version=1, num_slots=7))
