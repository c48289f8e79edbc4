"""One stream, many answers: what is written when the reader is slow."""

import asyncio
import itertools
from typing import Any

from completion.v1 import completion_pb2 as pb
from completion_server.engine.interface import Engine
from completion_server.engine.scripted import ScriptedEngine, ServiceTimes
from completion_server.rpc.identity import Identity
from completion_server.rpc.session import SessionStream
from completion_server.rpc.settings import LimitSettings
from tests.support.rooms import House, in_virtual_time
from tests.support.server import request

IDENTITY = Identity("u", "", "127.0.0.1:1", "127.0.0.1")


class SlowReader:
    """A call whose other side takes nothing until it is let."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.written: list[tuple[int, str | None]] = []

    async def read(self) -> pb.SessionRequest:
        return await self.messages.get()

    async def write(self, response: pb.SessionResponse) -> None:
        self.written.append((response.sequence, response.WhichOneof("event")))
        await self.reads.wait()

    def ask(self, sequence: int, **fields: Any) -> None:
        self.messages.put_nowait(pb.SessionRequest(complete=request(sequence=sequence, **fields)))


def endless_engine() -> Engine:
    return ScriptedEngine(lambda _job: itertools.repeat("a"), ServiceTimes(decode_base_s=0.01))


def test_text_that_waited_for_its_turn_is_not_written_once_a_newer_request_is_there() -> None:
    async def scenario(opened: House) -> None:
        reader = SlowReader()
        stream = SessionStream(opened.pipeline, LimitSettings(), 60.0, reader, IDENTITY)  # type: ignore[arg-type]
        serving = asyncio.create_task(stream.run())
        reader.ask(1, trigger=pb.TRIGGER_PREFETCH)
        await asyncio.sleep(0.005)
        reader.ask(2)
        await asyncio.sleep(0.1)
        assert reader.written == [(1, "delta")]  # and what 2 has to say waits for it
        reader.ask(3, prefix="y = ")
        await asyncio.sleep(0.1)
        assert opened.watcher.ended[0][1].value == "superseded"
        reader.reads.set()
        await asyncio.sleep(10.0)
        assert [event for sequence, event in reader.written if sequence == 2] == ["end"]
        assert ((1, "end") in reader.written, (3, "end") in reader.written) == (True, True)
        serving.cancel()
        await asyncio.wait([serving])

    in_virtual_time(scenario, endless_engine)
