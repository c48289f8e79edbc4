"""The relay of the benchmarks of replicas and regions."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from loadtest.bench.runner.relay import Relay


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
            relay.move_to(second, closes=True)
            assert ask(connection) == b""
        with connect(relay) as connection:
            assert ask(connection) == b"second"


def test_answers_are_delayed_and_complete() -> None:
    with named_server(b"first") as first, Relay(first) as relay, connect(relay) as connection:
        relay.hold_back(0.05)
        begin = time.monotonic()
        assert [ask(connection) for _ in range(3)] == [b"first"] * 3
        assert time.monotonic() - begin >= 3 * 0.05


def test_a_server_that_is_away_closes_the_connection() -> None:
    with ExitStack() as stack:
        with named_server(b"first") as first:
            relay = stack.enter_context(Relay(first))
        with connect(relay) as connection:
            assert ask(connection) == b""


def test_a_distance_delays_the_handshake_and_each_exchange_by_a_round_trip() -> None:
    with named_server(b"far") as far, Relay(far, round_trip_ms=60) as relay:
        begin = time.monotonic()
        with connect(relay) as connection:
            assert ask(connection) == b"far"
            first_s = time.monotonic() - begin
            assert ask(connection) == b"far"
            second_s = time.monotonic() - begin - first_s
    assert 0.12 <= first_s < 10
    assert 0.06 <= second_s < 10


def test_a_distance_delays_data_and_does_not_slow_it_down() -> None:
    """A relay that waited after each piece would need 50 round trips."""
    with echo_server() as echo, Relay(echo, round_trip_ms=200) as relay, connect(relay) as connection:
        begin = time.monotonic()
        sent = b""
        for number in range(50):
            piece = b"%03d|" % number
            connection.sendall(piece)
            sent += piece
            time.sleep(0.005)
        received = b""
        while len(received) < len(sent):
            received += connection.recv(1000)
        assert received == sent
        assert time.monotonic() - begin < 5


def test_clients_notice_that_a_distant_server_has_gone_and_find_the_one_that_replaces_it() -> None:
    with named_server(b"second") as second, ExitStack() as stack:
        gone = ExitStack()
        relay = stack.enter_context(Relay(gone.enter_context(named_server(b"first")), round_trip_ms=2))
        with connect(relay) as connection:
            assert ask(connection) == b"first"
        gone.close()
        with connect(relay) as connection:
            assert ask(connection) == b""
        relay.move_to(second)
        with connect(relay) as connection:
            assert ask(connection) == b"second"


@contextmanager
def echo_server() -> Iterator[str]:
    """Run a server that sends back what one client sends, and yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(10)
