"""Helpers whose silence would hide a fault: the proxy injects, limits end a test that hangs."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.fault_proxy import FaultProxy
from tests.support.http_clients import RawConnection, connection_to
from tests.support.models import ROOT
from tests.support.redis_servers import RedisServer, wait_until
from tests.support.server import eventually
from tests.support.waits import GaveUpError

PING, PONG = b"PING\r\n", b"+PONG\r\n"
SILENCE_S = 0.1


async def ask(client: RawConnection, request: bytes, num_bytes: int, within_s: float = 10) -> bytes:
    """Return the answer to a request, b"" if there is none within the time."""
    await client.send(request)
    try:
        async with asyncio.timeout(within_s):
            return await client.reader.readexactly(num_bytes)
    except TimeoutError:
        return b""


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(redis_server.address) as proxy:
        yield proxy


async def test_a_black_hole_answers_nothing_and_heals_for_new_connections(
    proxy: FaultProxy, stack: AsyncExitStack
) -> None:
    async def connect() -> RawConnection:
        return await stack.enter_async_context(connection_to(proxy.address))

    client, idle = await connect(), await connect()
    assert await ask(client, PING, len(PONG)) == await ask(idle, PING, len(PONG)) == PONG
    proxy.faults.black_hole = True
    assert await ask(client, PING, 1, SILENCE_S) == await ask(await connect(), PING, 1, SILENCE_S) == b""
    await proxy.heal()
    assert await ask(client, PING, 1, SILENCE_S) == b""
    assert await ask(idle, PING, len(PONG)) == await ask(await connect(), PING, len(PONG)) == PONG
    await stack.aclose()
    await eventually(lambda: proxy.num_open == 0)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", ["", "S"])
async def test_drops_and_duplicates_only_pushed_messages(
    proxy: FaultProxy, redis_server: RedisServer, stack: AsyncExitStack, protocol: int, kind: str
) -> None:
    client = await stack.enter_async_context(connection_to(proxy.address))
    publisher = await stack.enter_async_context(connection_to(redis_server.address))
    channel = f"fault-proxy-{protocol}{kind}"
    await client.send(f"HELLO {protocol}\r\n{kind}SUBSCRIBE {channel}\r\n".encode())
    async with asyncio.timeout(10):
        await client.reader.readuntil(b":1\r\n")  # behind the confirmation, which is no message
    proxy.faults.drop_pushes = proxy.faults.duplicate_pushes = 0.5
    sent = [f"{number:03d}" for number in range(200)]
    publishes = "".join(f"{kind}PUBLISH {channel} {text}\r\n" for text in sent)
    assert await ask(publisher, publishes.encode(), len(b":1\r\n") * len(sent))
    await client.send(b"PING end\r\n")  # answered after all messages
    async with asyncio.timeout(10):
        raw = await client.reader.readuntil(b"end\r\n")
    received = [raw[at + 4 : at + 7].decode() for at in range(len(raw)) if raw[at : at + 4] == b"$3\r\n"][:-1]
    assert sorted(received) == received
    assert 60 < len(set(sent) - set(received)) < 140
    assert 20 < len(received) - len(set(received)) < 80


async def test_a_wait_that_is_given_up_says_what_did_not_hold() -> None:
    num_cats = 0

    async def is_done() -> bool:
        return num_cats > 1

    conditions: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: num_cats == 1, r"did not hold within 0.02 s: .*lambda: num_cats == 1"),
        (is_done, "return num_cats > 1"),
    )
    for condition, said in conditions:
        with pytest.raises(GaveUpError, match=said):
            await eventually(condition, 0.02)  # type: ignore[arg-type]
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
