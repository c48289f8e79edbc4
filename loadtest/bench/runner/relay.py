"""A TCP relay on loopback: moves clients to another server, and holds a server's answers back."""

import asyncio
import json
import sys
from collections.abc import Callable

import click
import uvloop

from completion_server.core.addresses import split_address
from loadtest.bench.runner.schedule import Contestant
from loadtest.processes.child import Child

_START_S = 10.0
_CHUNK_BYTES, _MOST_WAITING = 65536, 64


class Relay(Contestant):
    """A relay in a process of its own, so that it does not wait for the CPU time of its clients."""

    name = "relay"

    def __init__(self, server: str) -> None:
        """Start a relay to HOST:PORT. Raises StartError if it did not start."""
        child = Child(self.name, (sys.executable, "-m", __name__, server), is_piped=True)
        self.address = str(self._begin(child, lambda child: child.read_json(_START_S))["address"])

    def move_to(self, server: str, *, closes: bool = False) -> None:
        """Connect clients to another server from now on. Their connections to the old one stay, or are closed.

        Raises StartError if it has died.
        """
        self._child.ask({"server": server, "closes": closes}, _START_S)

    def hold_back(self, delay_s: float) -> None:
        """Hold the server's answers back for so long. Raises StartError if it has died."""
        self._child.ask({"answer_delay_s": delay_s}, _START_S)


class _Relaying:
    """The relay itself, within an event loop."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.answer_delay_s = 0.0
        self.connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a client's connection until either end closes it."""
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        writers = [writer]
        try:
            answers, server = await asyncio.open_connection(*split_address(self.server))
            writers.append(server)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, server, lambda: 0.0))
                group.create_task(_pass_on(answers, writer, lambda: self.answer_delay_s))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # an end has gone, or the clients are moved
        finally:
            self.connections.discard(task)
            for each in writers:
                each.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: Callable[[], float]) -> None:
    """Pass on what comes, in order, late by a delay but not slowed down. Raises EOFError at its end."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.Queue[tuple[float, bytes]](_MOST_WAITING)

    async def read() -> None:
        data = b"-"
        while data:
            data = await reader.read(_CHUNK_BYTES)
            await waiting.put((loop.time() + delay_s(), data))

    async def write() -> None:
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                raise EOFError
            writer.write(data)
            await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        group.create_task(write())


async def _relay(address: str) -> None:
    """Relay until standard input ends; the first line of output is the relay's address, as JSON.

    A line {"server": "HOST:PORT", "closes": true} on standard input changes the server for new connections, and closes
    the others; {"answer_delay_s": 0.1} holds answers back. The answer is the line.
    """
    relaying = _Relaying(address)
    listener = await asyncio.start_server(relaying.serve, "127.0.0.1", 0)
    click.echo(json.dumps({"address": f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"}))
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        relaying.server = asked.get("server", relaying.server)
        relaying.answer_delay_s = asked.get("answer_delay_s", relaying.answer_delay_s)
        if asked.get("closes"):
            for task in tuple(relaying.connections):
                task.cancel()
        click.echo(line.strip())


if __name__ == "__main__":
    uvloop.run(_relay(sys.argv[1]))
