"""The board in shared memory, between real processes."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from completion_server.scheduling.book import Book
from completion_server.scheduling.neighbours import BoardNeighbours, Row
from completion_server.state.slot_board import SlotBoard
from tests.unit.scheduling.live_requests import live

_SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def board() -> Iterator[SlotBoard]:
    board = SlotBoard(4)
    yield board
    board.close()
    board.unlink()


def test_a_front_end_sees_the_rows_of_the_others_and_not_its_own(board: SlotBoard) -> None:
    first, second = board.at(0), board.at(3)
    first.write(Row(version=1, num_slots=8, head_class=2, head_order=0.1))
    assert first.others() == []
    [(place, values)] = second.others()
    assert (place, Row._make(values)) == (0, Row(1, 8, head_class=2, head_order=0.1))
    first.put(Row._fields.index("num_occupied"), 5)
    assert second.others()[0][1][:3] == (1, 8, 5)
    board.clear(0)
    assert second.others() == []


def _take_a_slot(board: SlotBoard, place: int, pipe: Connection) -> None:
    """Be a front end: take a slot, let a request wait, and say so; then look when told."""
    book = Book(1, 10, neighbours=BoardNeighbours(board.at(place)))
    pipe.send(book.submit(live("first", lane="1"), 0.0) + book.submit(live("second", lane="2"), 0.0))
    book.publish(0.0)
    pipe.send(None)
    while pipe.recv():
        pipe.send(book.look(0.0))


def test_two_processes_share_one_slot_and_the_parent_frees_that_of_a_dead_one(board: SlotBoard) -> None:
    pipe, child_pipe = _SPAWN.Pipe()
    child = _SPAWN.Process(target=_take_a_slot, args=(board, 0, child_pipe))
    child.start()
    assert [action.id for action in pipe.recv()] == ["first"]
    assert pipe.recv() is None
    book = Book(1, 10, neighbours=BoardNeighbours(board.at(1)))
    assert book.submit(live("third"), 0.0) == [], "the slot is taken elsewhere"
    book.publish(0.0)
    pipe.send(True)
    assert pipe.recv() == []
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert book.look(0.0) == [], "its place is not cleared yet"
    board.clear(0)
    assert [action.id for action in book.look(0.0)] == ["third"]


def test_the_board_outlives_a_process_that_was_attached(board: SlotBoard) -> None:
    child = _SPAWN.Process(target=_write_and_end, args=(board, 2))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert board.at(0).others()[0][1][:2] == (1, 7)


def _write_and_end(board: SlotBoard, place: int) -> None:
    board.at(place).write(Row(version=1, num_slots=7))
