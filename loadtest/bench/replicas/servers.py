"""What the parts of the benchmark share: its options and a Redis."""

import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from loadtest.bench.runner.benchmark import ServerOptions, option
from loadtest.bench.runner.schedule import Contestant
from loadtest.processes.child import Child, StartError, free_port

PARTS = ("supersede", "cache", "outage")
_REDIS_START_S = 10.0

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ServerOptions):
    """The options of a run, which every part gets."""

    part: tuple[str, ...] = option((), "May be repeated.  [all]", click.Choice(PARTS))
    rounds: int = option(4, "Turns of each server.", click.IntRange(1))
    seconds: float = option(20.0, "Length of a turn.", click.FloatRange(5))
    requests_per_s: float = option(40.0, "Asked by all users together.", click.FloatRange(1))
    seed: int = option(0, "Who types what and when.", int)


class RedisProcess(Contestant):
    """A `redis-server` on loopback that keeps nothing on disk. `restart` after `stop` has the same port."""

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
        self._command = [program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.restart()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    @property
    def process(self) -> Child:
        """The process. While it is paused the system accepts connections, and nothing is answered."""
        return self._child

    def restart(self) -> None:
        """Start it again after `stop`."""
        self._child = Child(self.name, self._command)
        try:
            self._child.wait_until(self._answers, _REDIS_START_S)
        except BaseException:
            self._child.stop()
            raise

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


def shared_by(redis: str, name: str) -> tuple[str, ...]:
    """Return the settings with which a server shares a Redis at HOST:PORT under a name of its own."""
    return (f'redis.addresses=["{redis}"]', f"redis.replica_id={name}")
