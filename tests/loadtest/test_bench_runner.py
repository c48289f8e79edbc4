"""The runner of the benchmarks: the relay, and a server whose processes are suspended between its turns."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from loadtest.bench.runner.loops import BenchPrompt
from loadtest.bench.runner.relay import Relay
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from tests.support.models import ROOT

HANG_TIMEOUT_S = 2.0
SETTINGS = (*SERVES_ALL, f"engine.hang_timeout_s={HANG_TIMEOUT_S}", "engine.num_speculative_tokens=0")


@contextmanager
def serving(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """Run a server that answers what it receives, and yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1000):
                    connection.sendall(answer(data))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def connect(relay: Relay) -> socket.socket:
    host, _, port = relay.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def ask(relay: Relay) -> bytes:
    """Return the answer on a new connection."""
    with connect(relay) as connection:
        return ask_on(connection)


def ask_on(connection: socket.socket) -> bytes:
    """Return the answer; b"" if the connection was closed."""
    try:
        connection.sendall(b"who?")
        return connection.recv(100)
    except OSError:
        return b""


def test_clients_are_moved_to_another_server() -> None:
    with serving(lambda _: b"first") as first, serving(lambda _: b"second") as second, Relay(first) as relay:
        with connect(relay) as connection:
            assert ask_on(connection) == b"first"
            relay.move_to(second, closes=True)
            assert ask_on(connection) == b""
        assert ask(relay) == b"second"


def test_answers_are_held_back_and_complete() -> None:
    with serving(lambda _: b"first") as first, Relay(first) as relay, connect(relay) as connection:
        relay.hold_back(0.05)
        begin = time.monotonic()
        assert [ask_on(connection) for _ in range(3)] == [b"first"] * 3
        assert time.monotonic() - begin >= 3 * 0.05


def test_clients_notice_that_a_server_has_gone_and_find_the_one_that_replaces_it() -> None:
    with serving(lambda _: b"second") as second, ExitStack() as stack:
        gone = ExitStack()
        relay = stack.enter_context(Relay(gone.enter_context(serving(lambda _: b"first"))))
        assert ask(relay) == b"first"
        gone.close()
        assert ask(relay) == b""
        relay.move_to(second)
        assert ask(relay) == b"second"


def processes_of(server: ServerProcess) -> set[int]:
    return {each.pid for each in psutil.Process(server.pid).children(recursive=True)}


@pytest.mark.serial
@pytest.mark.full
async def test_a_server_that_rests_keeps_its_engine_and_its_requests() -> None:
    prompts = [BenchPrompt(f"def add_{number}(a, b):\n    return ", "\n", 48) for number in range(64)]
    config = ROOT / "deploy" / "local" / "server.toml"
    async with ServerProcess(config, SETTINGS) as server:
        processes = processes_of(server)
        asked = asyncio.create_task(server.run(prompts, 4))
        for _ in range(3):
            await asyncio.sleep(0.1)
            server.process.pause()
            await asyncio.sleep(2 * HANG_TIMEOUT_S)
            server.process.resume()
        assert len((await asked).samples) == len(prompts)  # it raises for a request without an answer
        assert processes_of(server) == processes
