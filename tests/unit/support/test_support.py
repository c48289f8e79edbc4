"""Helpers whose silence would hide a fault: the proxy injects, limits end a test that hangs."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.fault_proxy import FaultProxy
from tests.support.models import ROOT
from tests.support.redis_servers import RedisServer, wait_until
from tests.support.server import eventually
from tests.support.waits import GaveUpError

PING, PONG = b"PING\r\n", b"+PONG\r\n"
SILENCE_S = 0.1


class Client:
    """A raw connection to a proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes, num_bytes: int) -> bytes:
        self.writer.write(request)
        async with asyncio.timeout(10):
            return await self.reader.readexactly(num_bytes)

    async def ping(self) -> bool:
        return await self.ask(PING, len(PONG)) == PONG

    async def is_answered(self) -> bool:
        self.writer.write(PING)
        try:
            async with asyncio.timeout(SILENCE_S):
                return bool(await self.reader.read(1))
        except TimeoutError:
            return False

    async def is_ended(self) -> bool:
        async with asyncio.timeout(10):
            return not await self.reader.read()

    def close(self) -> None:
        self.writer.close()


Connect = Callable[[FaultProxy], Awaitable[Client]]


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async def connect_to(proxy: FaultProxy) -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", proxy.port)))
        return clients[-1]

    yield connect_to
    for client in clients:
        client.close()


@pytest_asyncio.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(redis_server.address) as proxy:
        yield proxy


async def test_a_black_hole_answers_nothing_and_heals_for_new_connections(proxy: FaultProxy, connect: Connect) -> None:
    client, idle = await connect(proxy), await connect(proxy)
    assert await client.ping()
    assert await idle.ping()
    proxy.faults.black_hole = True
    new = await connect(proxy)
    assert not await client.is_answered()
    assert not await new.is_answered()
    await proxy.heal()
    assert not await client.is_answered()
    assert await idle.ping()
    last = await connect(proxy)
    assert await last.ping()
    for each in (client, idle, new, last):
        each.close()
    await eventually(lambda: proxy.num_open == 0)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", ["", "S"])
async def test_drops_and_duplicates_only_pushed_messages(
    proxy: FaultProxy, redis_server: RedisServer, connect: Connect, protocol: int, kind: str
) -> None:
    client = await connect(proxy)
    channel = f"fault-proxy-{protocol}{kind}"
    client.writer.write(f"HELLO {protocol}\r\n{kind}SUBSCRIBE {channel}\r\n".encode())
    async with asyncio.timeout(10):
        await client.reader.readuntil(b":1\r\n")  # behind the confirmation, which is no message
    proxy.faults.drop_pushes = proxy.faults.duplicate_pushes = 0.5
    sent = [f"{number:03d}" for number in range(200)]
    async with FaultProxy(redis_server.address) as direct:
        publisher = await connect(direct)
        publishes = "".join(f"{kind}PUBLISH {channel} {text}\r\n" for text in sent)
        await publisher.ask(publishes.encode(), len(b":1\r\n") * len(sent))
    async with asyncio.timeout(10):
        client.writer.write(b"PING end\r\n")  # answered after all messages
        raw = await client.reader.readuntil(b"end\r\n")
    received = [raw[at + 4 : at + 7].decode() for at in range(len(raw)) if raw[at : at + 4] == b"$3\r\n"][:-1]
    assert sorted(received) == received
    assert 60 < len(set(sent) - set(received)) < 140
    assert 20 < len(received) - len(set(received)) < 80


async def test_a_wait_that_is_given_up_says_what_did_not_hold() -> None:
    num_cats = 0

    async def is_done() -> bool:
        return num_cats > 1

    with pytest.raises(GaveUpError, match=r"did not hold within 0.02 s: .*lambda: num_cats == 1"):
        await eventually(lambda: num_cats == 1, 0.02)
    with pytest.raises(GaveUpError, match="return num_cats > 1"):
        await eventually(is_done, 0.02)
    with pytest.raises(GaveUpError, match="lambda: num_cats == 2"):
        wait_until(lambda: num_cats == 2, 0.02)
    num_cats = 2
    await eventually(is_done)


HANGS = """
import asyncio
import pytest

async def part() -> None:
    await asyncio.Event().wait()  # what never comes

@pytest.mark.timeout(0.2)
async def test_one() -> None:
    waiting = asyncio.create_task(part(), name="a part")
    await asyncio.sleep(60)

async def test_next() -> None:
    pass
"""


def test_a_test_that_hangs_fails_with_the_awaits_of_all_tasks_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    command = (sys.executable, "-m", "pytest", "-p", "tests.support.limits", "--asyncio-mode=auto", str(tmp_path))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "1 failed, 1 passed" in done.stdout
    told = done.stdout.partition("no end within 0.2 s; the tasks wait here:")[2]
    assert "await asyncio.sleep(60)" in told
    assert "in part\n    await asyncio.Event().wait()  # what never comes" in told.partition("a part:")[2]
