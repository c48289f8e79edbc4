"""The relay of the benchmarks of replicas."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from loadtest.bench.replicas.shared.relay import Relay


@contextmanager
def named_server(name: bytes) -> Iterator[str]:
    """Run a server that answers each message with its name, and yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while connection.recv(100):
                    connection.sendall(name)

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


def ask(connection: socket.socket) -> bytes:
    """Return the answer; b"" if the connection was closed."""
    try:
        connection.sendall(b"who?")
        return connection.recv(100)
    except OSError:
        return b""


def test_clients_are_moved_to_another_server() -> None:
    with named_server(b"first") as first, named_server(b"second") as second, Relay(first) as relay:
        with connect(relay) as connection:
            assert ask(connection) == b"first"
            relay.move_to(second)
            assert ask(connection) == b""
        with connect(relay) as connection:
            assert ask(connection) == b"second"


def test_answers_are_delayed_and_complete() -> None:
    with named_server(b"first") as first, Relay(first) as relay, connect(relay) as connection:
        relay.delay_s = 0.05
        begin = time.monotonic()
        assert [ask(connection) for _ in range(3)] == [b"first"] * 3
        assert time.monotonic() - begin >= 3 * relay.delay_s


def test_a_server_that_is_away_closes_the_connection() -> None:
    with ExitStack() as stack:
        with named_server(b"first") as first:
            relay = stack.enter_context(Relay(first))
        with connect(relay) as connection:
            assert ask(connection) == b""
