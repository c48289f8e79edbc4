"""Processes that attach to an engine of the test's process, and generate for the test."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncGenerator
from multiprocessing.connection import Connection
from typing import Any

from completion_server.composition.engine_factory import make_attached_engine
from completion_server.config import Config
from completion_server.engine.interface import EngineDeadError, EngineShare, GenerationRequest, Output

START_S = 240.0
"""For a process that imports vLLM, on machines that are busy with other things."""

Message = tuple[str, Any]
"""An id of a generation and an output of it, an error or None at its end; or "started" and the seconds that it took."""


class FrontEnd:
    """A process with an attached engine. `generate` is that of the engine, so that tests of engines can use it."""

    def __init__(self, config: Config, share: EngineShare, place: int) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=_main, args=(theirs, config, share, place), daemon=True
        )
        self.place = place
        self._queues: dict[str, asyncio.Queue[Any]] = {}
        self.attach_s = 0.0
        """How long it took to attach, without the start of the process and its imports."""

    async def start(self) -> None:
        """Start the process, and wait until it has attached."""
        self._queues["started"] = asyncio.Queue()
        self.process.start()
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._read)
        async with asyncio.timeout(START_S):
            started = await self._queues["started"].get()
        if isinstance(started, Exception):
            raise started
        self.attach_s = started

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        """Yield the outputs of a generation in the process."""
        queue = self._queues[request.id] = asyncio.Queue()
        self._connection.send(("generate", request))
        while (output := await queue.get()) is not None:
            if isinstance(output, Exception):
                raise output
            yield output

    def fail(self, reason: str) -> None:
        """Tell the process that the engine has died."""
        self._connection.send(("fail", reason))

    def kill(self) -> None:
        """Kill the process by a signal that it can't handle, and wait for its end."""
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        self.process.kill()
        self.process.join()

    def _read(self) -> None:
        while self._connection.poll():
            name, value = self._connection.recv()
            self._queues[name].put_nowait(value)


def _main(connection: Connection, config: Config, share: EngineShare, place: int) -> None:
    asyncio.run(_serve(connection, config, share, place))


async def _serve(connection: Connection, config: Config, share: EngineShare, place: int) -> None:
    engine = make_attached_engine(config, share, place)
    began = time.monotonic()
    try:
        await engine.start()
    except EngineDeadError as error:
        connection.send(("started", error))
        return
    connection.send(("started", time.monotonic() - began))
    tasks: set[asyncio.Task[None]] = set()

    async def run(request: GenerationRequest) -> None:
        try:
            async for output in engine.generate(request):
                connection.send((request.id, output))
        except EngineDeadError as error:
            connection.send((request.id, error))
        connection.send((request.id, None))

    def obey() -> None:
        order, value = connection.recv()
        if order == "fail":
            engine.fail(value)
        else:
            task = asyncio.create_task(run(value))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_reader(connection.fileno(), obey)
    await asyncio.Event().wait()
