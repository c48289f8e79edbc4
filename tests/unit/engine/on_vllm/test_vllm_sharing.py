"""The parts of a shared vLLM engine that need no engine: the patches of its sockets, the board, names of clients."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm.patches.sharing import asked_ready, late_replies, repeated_ready
from completion_server.engine.vllm.sharing.board import EngineBoard, open_published_board
from completion_server.engine.vllm.sharing.clients import client_at, client_of, requests_of
from completion_server.engine.vllm.sharing.share import unshared_reason

READY = b"the core's configuration"
CORE = b"\0\0"
SOON_S = 5.0
NOT_S = 0.4
"""Longer than a socket takes to connect again."""


def make_socket(context: zmq.Context[Any], path: str, socket_type: int, **options: Any) -> Any:
    """Make a socket as vLLM does; importing vLLM takes seconds."""
    made = context.socket(socket_type)
    made.setsockopt(zmq.LINGER, 0)
    if socket_type == zmq.DEALER:
        made.setsockopt(zmq.IDENTITY, CORE)
        made.connect(path)
    else:
        made.bind(path)
    return made


@contextmanager
def running_core(path: str, make: Callable[..., Any]) -> Iterator[list[list[bytes]]]:
    """Run a thread that reads requests as the engine core does; yield those that it has read."""
    requests: list[list[bytes]] = []
    ends = threading.Event()

    def serve() -> None:
        with zmq.Context() as context, closing(make(context, path, zmq.DEALER)) as dealer:
            dealer.send(READY)
            while not ends.is_set():
                if dealer.poll(10):
                    requests.append(dealer.recv_multipart())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield requests
    finally:
        ends.set()
        thread.join()


def first_message(path: str, make: Callable[..., Any], within_s: float = SOON_S) -> bytes | None:
    """Return what a new client receives first, None if it is nothing."""
    with zmq.Context() as context, closing(make(context, path, zmq.ROUTER)) as router:
        return router.recv_multipart()[1] if router.poll(int(1000 * within_s)) else None


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/input"


def test_a_client_attaches_again_and_again(path: str) -> None:
    with running_core(path, repeated_ready.replacement(make_socket)) as requests:
        make_asking = asked_ready.replacement(make_socket, SOON_S)
        assert [first_message(path, make_asking) for _ in range(4)] == [READY] * 4
    assert all(request == [b"\x05", b"\xc0"] for request in requests), "what the core then handles does nothing"
    assert requests


def test_without_the_patches_the_second_client_waits_in_vain(path: str) -> None:
    with running_core(path, make_socket):
        assert first_message(path, make_socket) == READY
        assert first_message(path, make_socket, NOT_S) is None
        with pytest.raises(TimeoutError, match="did not answer"):
            first_message(path, asked_ready.replacement(make_socket, NOT_S))


def test_a_client_of_a_dead_core_gives_up(path: str) -> None:
    with pytest.raises(TimeoutError, match="did not connect"):
        first_message(path, asked_ready.replacement(make_socket, NOT_S))


def test_late_replies_are_ignored() -> None:
    done: list[int] = []

    def process(output: Any, results: dict[int, Any]) -> None:
        results.pop(output.call_id)
        done.append(output.call_id)

    late, own = SimpleNamespace(call_id=1), SimpleNamespace(call_id=2)
    with pytest.raises(KeyError):
        process(late, {2: None})
    late_replies.replacement(process)(late, {2: None})
    late_replies.replacement(process)(own, {2: None})
    assert done == [2]


def test_a_client_has_one_name(tmp_path: Path) -> None:
    assert [client_of(requests_of(client_at(place))) for place in (0, 15)] == [1, 16]
    assert client_of("a-request-0123abcd") is None


def test_the_board_is_found_while_it_is_published(tmp_path: Path) -> None:
    assert open_published_board() is None
    board = EngineBoard(tmp_path / "board", is_new=True)
    with board.published():
        core = open_published_board()
    assert open_published_board() is None
    assert core is not None
    assert (board.num_running, board.num_waiting, board.kv_usage) == (0, 0, 0.0)
    core.write(3, 1, 0.25)
    assert (board.num_running, board.num_waiting, board.kv_usage) == (3, 1, 0.25)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, ""), ({"scheduler_cls": "x.Y"}, "scheduler_cls"), ({"data_parallel_size": 2}, "data_parallel_size")],
)
def test_an_engine_with_another_scheduler_is_not_shared(options: dict[str, Any], reason: str) -> None:
    found = unshared_reason(EngineSettings(model="m", vllm=options))
    assert reason in found
    assert bool(found) == bool(reason)
