"""A TCP relay on loopback, in a thread: adds delay to a server's answers, or moves its clients to another one."""

import asyncio
import logging
import threading
from types import TracebackType
from typing import Self

from completion_server.core.addresses import split_address

logger = logging.getLogger(__name__)

_CHUNK = 1 << 16
_START_S = 10.0


class Relay:
    """Passes connections on to a server, which can be changed."""

    def __init__(self, server: str) -> None:
        """Prepare a relay to HOST:PORT; entering it starts it."""
        self._server = server
        self.delay_s = 0.0
        """How long each chunk of the server's answers is held back. What arrives meanwhile goes with the next chunk."""
        self.address = ""
        """HOST:PORT, once it has started."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def move_to(self, server: str) -> None:
        """Connect clients to another server from now on, and close their connections to the old one."""
        self._server = server
        self._loop.call_soon_threadsafe(self._close_all)

    def __enter__(self) -> Self:
        """Start it."""
        self._thread.start()
        self.address = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections and stop it."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    async def _listen(self) -> str:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        self._listener.close()
        self._close_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes both ways until either side has closed its connection."""
        writers = [writer]
        self._open.add(writer)
        try:
            answers, server = await asyncio.open_connection(*split_address(self._server))
            writers.append(server)
            self._open.add(server)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, server, is_answer=False))
                group.create_task(self._pass_on(answers, writer, is_answer=True))
        except* OSError as errors:  # how each connection ends
            logger.debug("a relayed connection ended: %s", errors.exceptions)
        finally:
            for each in writers:
                self._open.discard(each)
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        while chunk := await reader.read(_CHUNK):
            if is_answer and self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError
