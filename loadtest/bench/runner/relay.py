"""A TCP relay on loopback: puts distance between clients and a server, or moves the clients to another server.

Distance is a delay of each direction, and a further round trip for the handshake of a connection. Data is delayed, not
slowed down: what is sent later arrives later by as much.
"""

import asyncio
import json
import sys
from collections import deque
from typing import cast

import click
import uvloop

from completion_server.core.addresses import split_address
from loadtest.bench.runner.schedule import Contestant
from loadtest.processes.child import Child

_START_S = 10.0
_MS = 1000.0


class Relay(Contestant):
    """A relay in a process of its own, so that it does not wait for the CPU time of its clients."""

    name = "relay"

    def __init__(self, server: str, round_trip_ms: float = 0.0) -> None:
        """Start a relay to HOST:PORT with a round-trip time. Raises StartError if it did not start."""
        command = (sys.executable, "-m", __name__, server, "--round-trip-ms", f"{round_trip_ms:g}")
        child = Child(self.name, command, is_piped=True)
        self.address = str(self._begin(child, lambda child: child.read_json(_START_S))["address"])

    def move_to(self, server: str, *, closes: bool = False) -> None:
        """Connect clients to another server from now on. Their connections to the old one stay, or are closed.

        Raises StartError if it has died.
        """
        self._child.ask({"server": server, "closes": closes}, _START_S)

    def hold_back(self, delay_s: float) -> None:
        """Hold the server's answers back for so long. Raises StartError if it has died."""
        self._child.ask({"answer_delay_s": delay_s}, _START_S)


class Relaying:
    """The relay itself, within an event loop."""

    def __init__(self, server: str, request_delay_s: float = 0.0, answer_delay_s: float = 0.0) -> None:
        """Relay to HOST:PORT after `listen`."""
        self.server = server
        self.request_delay_s = request_delay_s
        self.answer_delay_s = answer_delay_s
        self.ends: set[_End] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self) -> str:
        """Accept connections; return HOST:PORT."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _End(self), "127.0.0.1", 0)
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close all connections and accept no more."""
        if self._listener is not None:
            self._listener.close()
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.close_all()

    def close_all(self) -> None:
        """Close all connections."""
        for end in tuple(self.ends):
            end.transport.abort()

    def add(self, end: "_End") -> None:
        """Take an end that is connected; connect a client's to the server."""
        self.ends.add(end)
        if not end.is_server:
            task = asyncio.create_task(self._connect(end))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: "_End") -> None:
        round_trip_s = self.request_delay_s + self.answer_delay_s
        if round_trip_s:
            await asyncio.sleep(round_trip_s)  # the handshake over the distance; the one with this relay takes no time
        try:
            _, server = await asyncio.get_running_loop().create_connection(
                lambda: _End(self, client), *split_address(self.server)
            )
        except OSError:
            client.transport.abort()
            return
        client.join(server)


class _End(asyncio.Protocol):
    """One end of a relayed connection; it writes what its peer receives."""

    transport: asyncio.Transport

    def __init__(self, relaying: Relaying, client: "_End | None" = None) -> None:
        self.is_server = client is not None
        self._relaying = relaying
        self._peer = client
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes]] = deque()
        """Received and not passed on, with the time when it is due; b"" closes the peer."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._relaying.add(self)

    def join(self, server: "_End") -> None:
        """Relay from now on, both ways."""
        if self._is_closed:
            server.transport.abort()
            return
        self._peer = server
        early, self._waiting = self._waiting, deque()
        for _due, data in early:
            self._pass_on(data)

    def data_received(self, data: bytes) -> None:
        self._pass_on(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._relaying.ends.discard(self)
        self._pass_on(b"")

    def pause_writing(self) -> None:
        if self._peer is not None and not self._peer.transport.is_closing():
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._peer is not None and not self._peer.transport.is_closing():
            self._peer.transport.resume_reading()

    def _pass_on(self, data: bytes) -> None:
        relaying = self._relaying
        due = self._loop.time() + (relaying.answer_delay_s if self.is_server else relaying.request_delay_s)
        self._waiting.append((due, data))
        if self._timer is None and self._peer is not None:
            self._timer = self._loop.call_at(due, self._write_due)

    def _write_due(self) -> None:
        """Write what is due. Timers of an event loop may come a little early, hence the next one's time decides."""
        self._timer = None
        assert self._peer is not None
        pieces = [self._waiting.popleft()[1]]
        while self._waiting and self._waiting[0][0] <= self._loop.time():
            pieces.append(self._waiting.popleft()[1])
        if not self._peer.transport.is_closing():
            self._peer.transport.write(b"".join(pieces))
            if not pieces[-1]:
                self._peer.transport.close()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._write_due)


@click.command()
@click.argument("server")
@click.option("--round-trip-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="To the server.")
def main(server: str, round_trip_ms: float) -> None:
    """Relay to SERVER (HOST:PORT) until standard input ends; the first line of output is the address, as JSON.

    A line {"server": "HOST:PORT", "closes": true} on standard input changes the server for new connections, and closes
    the others; {"answer_delay_s": 0.1} holds answers back. The answer is the line.
    """
    uvloop.run(_relay(server, round_trip_ms / _MS))


async def _relay(server: str, round_trip_s: float) -> None:
    relaying = Relaying(server, round_trip_s / 2, round_trip_s / 2)
    click.echo(json.dumps({"address": await relaying.listen()}))
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        relaying.server = asked.get("server", relaying.server)
        relaying.answer_delay_s = asked.get("answer_delay_s", relaying.answer_delay_s)
        if asked.get("closes"):
            relaying.close_all()
        click.echo(line.strip())
    await relaying.close()


if __name__ == "__main__":
    main()
