"""Helpers whose silence would hide a fault: the proxy injects, readers refuse, limits end a test that hangs."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path, PurePosixPath

import psutil
import pytest
import pytest_asyncio

from tests.support.dockerfile import Dockerfile, DockerfileError, Ignored, key_values
from tests.support.fault_proxy import Delay, FaultProxy, ReplySplitter
from tests.support.models import ROOT
from tests.support.redis_servers import RedisServer, require_redis, running
from tests.support.repeat import Run
from tests.support.server import eventually

PING, PONG = b"PING\r\n", b"+PONG\r\n"
SILENCE_S = 0.1
DIGEST = "sha256:" + "0" * 64


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


async def test_the_proxy_relays_resets_refuses_swallows_and_heals(proxy: FaultProxy, connect: Connect) -> None:
    client, idle = await connect(proxy), await connect(proxy)
    assert await client.ping()
    assert await idle.ping()
    assert (proxy.num_made, proxy.num_open) == (2, 2)
    proxy.faults.black_hole = True
    new = await connect(proxy)
    assert not await client.is_answered()
    assert not await new.is_answered()
    await proxy.heal()
    assert not await client.is_answered(), "its requests are lost"
    assert await idle.ping()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect(proxy)
    assert await idle.ping()
    await proxy.heal()
    assert await (await connect(proxy)).ping()
    proxy.reset_all()
    with pytest.raises(ConnectionResetError):
        await idle.is_ended()
    proxy.faults.reset_new = True
    with pytest.raises(ConnectionResetError):
        await (await connect(proxy)).is_ended()
    await eventually(lambda: proxy.num_open == 0)
    assert proxy.num_made == 5


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
def test_the_proxy_splits_replies_into_whole_values_and_passes_on_what_is_not_resp(num_bytes: int) -> None:
    data = b"".join(VALUES)
    splitter = ReplySplitter()
    pieces = [data[at : at + num_bytes] for at in range(0, len(data), num_bytes)]
    assert [value for piece in pieces for value in splitter.feed(piece)] == list(VALUES)
    for passed in (b"+OK\r\n\x16\x03\x01", b"+O"):
        assert b"".join(splitter.feed(passed)) == passed


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


def read(tmp_path: Path, text: str, **build_args: str) -> Dockerfile:
    (tmp_path / "Dockerfile").write_text(text, encoding="utf-8")
    return Dockerfile.read(tmp_path / "Dockerfile", build_args)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FROM a\nADD http://x /x\n", "line 2: the instruction ADD"),
        ("FROM a\nRUN <<EOF\ntrue\nEOF\n", "line 2: here-documents"),
        ("FROM ${MISSING}\n", "line 1: no value for MISSING"),
        ("FROM --platform=linux/arm64 a\n", "line 1: FROM"),
        ("ENV A=1\nFROM a\n", "line 1: ENV before FROM"),
    ],
)
def test_what_is_not_known_is_refused(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(DockerfileError, match=named):
        read(tmp_path, text)


def test_a_dockerfile_is_read_as_buildkit_reads_it(tmp_path: Path) -> None:
    text = f"ARG BASE=debian@{DIGEST}\nARG KIND=x\nFROM ${{BASE}} AS x\nFROM x AS y\nFROM ${{KIND}}\n"
    assert read(tmp_path, text).stages["2"].base == "x"
    assert read(tmp_path, text, KIND="y").stages["2"].base == "y"
    assert read(tmp_path, text).unpinned_images() == []
    for line in ("COPY --from=tool:1 /a /a", "FROM tool:1", f"FROM tool:1@{DIGEST[:-1]}"):
        (found,) = read(tmp_path, f"FROM debian@{DIGEST} AS x\n{line}\n").unpinned_images()
        assert found.startswith("tool:1")
    text = 'FROM a\nRUN one; \\\n# why\n    two\nENV A="x y" B=${C}/z\nCOPY --chown=1:1 b /b\n'
    run, env, copy = read(tmp_path, text).stages["0"].instructions
    assert run.value.split() == ["one;", "two"]
    assert key_values(env, {"C": "c"}) == {"A": "x y", "B": "c/z"}
    with pytest.raises(DockerfileError, match="no value for C"):
        key_values(env, {})
    with pytest.raises(DockerfileError, match="--chown"):
        copy.options("from")


def test_the_last_rule_that_matches_decides_what_the_image_leaves_out() -> None:
    rules = Ignored(["# comment", "*", "!src", "!docs/one.md", "src/weights", "**/*.bin"])
    paths = ("a.txt", "src/a.py", "src/weights/a", "src/deep/x.bin", "docs/one.md", "docs/two.md")
    assert [path for path in paths if PurePosixPath(path) not in rules] == ["src/a.py", "docs/one.md"]
    with pytest.raises(DockerfileError, match="known"):
        Ignored(["a/**/b"])


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


OUTPUT = """
FAILED tests/a.py::test_one[a b] - AssertionError: assert 1 - 1
ERROR tests/b.py::test_two
1 failed, 40 passed, 2 skipped, 1 error in 352.12s (0:05:52)
ERROR    asyncio:base_events.py:1758 a line of a log
5 passed, 40 deselected in 1.00s
"""


def test_the_counts_of_all_parts_of_a_run_are_added() -> None:
    assert Run.of_output(OUTPUT, 2, 3.0) == Run(45, 2, 3.0, ("tests/a.py::test_one[a b]", "tests/b.py::test_two"))
    assert Run.of_output("", 2, 3.0) == Run(0, 1, 3.0, ("the command ended with status 2",))
    assert Run.of_output("5 passed in 1.0s", 0, 3.0) == Run(5, 0, 3.0, ())


def test_repeated_runs_list_the_failures_of_any_and_fail_as_a_whole(tmp_path: Path) -> None:
    said = "FAILED tests/a.py::test_one - why\n1 failed, 4 passed in 1.00s"
    command = (sys.executable, "-m", "tests.support.repeat", "2", "sh", "-c", f"echo '{said}'; exit 1")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    rows = [line.split() for line in done.stdout.splitlines()[1:3]]
    assert [row[1:3] + row[4:] for row in rows] == [["4", "1", "tests/a.py::test_one"]] * 2
