"""The proxy that injects faults, and the Redis processes of tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import psutil
import pytest
import pytest_asyncio

from tests.support.fault_proxy import Delay, FaultProxy, ReplySplitter
from tests.support.redis_servers import RedisServer, require_redis, running
from tests.support.server import eventually

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


async def test_relays_and_counts_connections(proxy: FaultProxy, connect: Connect) -> None:
    clients = [await connect(proxy) for _ in range(3)]
    assert all([await client.ping() for client in clients])
    assert (proxy.num_made, proxy.num_open) == (3, 3)
    clients[0].close()
    await eventually(lambda: proxy.num_open == 2)
    assert proxy.num_made == 3


@pytest.mark.parametrize("direction", ["request_delay", "reply_delay"])
async def test_delays_each_direction_and_keeps_the_order(proxy: FaultProxy, connect: Connect, direction: str) -> None:
    client = await connect(proxy)
    setattr(proxy.faults, direction, Delay(0.05, 0.05))
    began = time.monotonic()
    assert await client.ping()
    assert time.monotonic() - began >= 0.045
    setattr(proxy.faults, direction, Delay(0.0, 0.02))
    for number in range(50):
        client.writer.write(b"ECHO %04d\r\n" % number)
        await asyncio.sleep(0.001)
    received = await client.ask(b"", 50 * len("$4\r\n0000\r\n"))
    assert received == b"".join(b"$4\r\n%04d\r\n" % number for number in range(50))


async def test_resets_open_connections_and_new_ones(proxy: FaultProxy, connect: Connect) -> None:
    client = await connect(proxy)
    assert await client.ping()
    proxy.reset_all()
    with pytest.raises(ConnectionResetError):
        await client.is_ended()
    proxy.faults.reset_new = True
    new = await connect(proxy)
    with pytest.raises(ConnectionResetError):
        await new.is_ended()
    await eventually(lambda: proxy.num_open == 0)
    assert proxy.num_made == 2


async def test_refuses_and_accepts_on_the_same_port(proxy: FaultProxy, connect: Connect) -> None:
    client = await connect(proxy)
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect(proxy)
    assert await client.ping()
    await proxy.heal()
    new = await connect(proxy)
    assert await new.ping()


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
    assert len(received) == 200 - proxy.num_pushes_dropped + proxy.num_pushes_duplicated
    assert sorted(received) == received
    assert 60 < proxy.num_pushes_dropped < 140
    assert 20 < proxy.num_pushes_duplicated < 80
    assert set(received) < set(sent)


VALUES = (
    b"+OK\r\n", b"-ERR no\r\n", b":12\r\n", b"$5\r\na\r\nbc\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"_\r\n",
    b"#t\r\n", b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", b"%1\r\n+k\r\n~2\r\n:1\r\n:2\r\n",
    b"|1\r\n+k\r\n:1\r\n$1\r\nx\r\n", b"=5\r\ntxt:a\r\n", b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
)  # fmt: skip


@pytest.mark.parametrize("num_bytes", [1, 2, 7, 1_000])
def test_splits_replies_into_whole_values(num_bytes: int) -> None:
    data = b"".join(VALUES)
    splitter = ReplySplitter()
    pieces = [data[at : at + num_bytes] for at in range(0, len(data), num_bytes)]
    assert [value for piece in pieces for value in splitter.feed(piece)] == list(VALUES)


def test_passes_on_what_is_not_resp() -> None:
    splitter = ReplySplitter()
    assert b"".join(splitter.feed(b"+OK\r\n\x16\x03\x01")) == b"+OK\r\n\x16\x03\x01"
    assert b"".join(splitter.feed(b"+O")) == b"+O"


def test_servers_are_gone_after_a_failure_also_frozen_ones() -> None:
    require_redis()
    servers = [RedisServer() for _ in range(2)]
    folders = [server.folder for server in servers]
    pids: list[int] = []

    def fail() -> None:
        with running(*servers):
            pids.extend(server.pid for server in servers)
            servers[1].freeze()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))
    assert not any(folder.exists() for folder in folders)
    servers[0].stop()


@pytest.mark.parametrize("is_ci", [True, False])
def test_a_missing_redis_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch, is_ci: bool) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "1" if is_ci else "")
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as raised:
        require_redis()
    assert raised.type is (pytest.fail.Exception if is_ci else pytest.skip.Exception)
