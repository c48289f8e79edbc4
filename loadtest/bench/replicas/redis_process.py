"""A Redis for benchmarks: a real `redis-server` on loopback that keeps nothing on disk."""

import shutil
import socket
from contextlib import suppress

from loadtest.bench.runner.schedule import Contestant
from loadtest.processes.child import Child, StartError, free_port

_START_S = 10.0


class RedisProcess(Contestant):
    """A running `redis-server`. It can be stopped and started again on the same port, and suspended."""

    name = "redis"

    def __init__(self) -> None:
        """Start it.

        Raises:
            StartError: it is not installed, or did not start.

        """
        program = shutil.which("redis-server")
        if program is None:
            msg = "redis-server is not installed; on Debian: apt-get install redis-server"
            raise StartError(msg)
        self._port = free_port()
        base = ("port", str(self._port), "bind", "127.0.0.1", "save", "", "appendonly", "no")
        flags = [word if at % 2 else f"--{word}" for at, word in enumerate(base)]
        self._command = [program, *flags]
        self._child = self._start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    def suspend(self) -> None:
        """Suspend it: the system goes on to accept connections, and nothing is answered."""
        self._child.pause()

    def resume(self) -> None:
        """Let it go on after `suspend`."""
        self._child.resume()

    def restart(self) -> None:
        """Start it again after `stop`."""
        self._child = self._start()

    @property
    def process(self) -> Child:
        """The process."""
        return self._child

    def _start(self) -> Child:
        child = Child(self.name, self._command)
        try:
            child.wait_until(self._answers, _START_S)
        except BaseException:
            child.stop()
            raise
        return child

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


def shared_by(redis: str, name: str) -> tuple[str, ...]:
    """Return the settings with which a server shares a Redis at HOST:PORT under a name of its own."""
    return (f'redis.addresses=["{redis}"]', f"redis.replica_id={name}")
