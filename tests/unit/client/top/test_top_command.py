"""The command top: a whole screen, and a terminal that goes away."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client_fakes import FakeServer, Run, Serve
from grpc_health.v1 import health_pb2

from completion.v1 import admin_pb2
from completion_server.client.top.command import top
from completion_server.client.top.keys import reading_keys
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.scripted import letters
from tests.support.server import RunningServer, ask, eventually, make_config, request, run_server

SERVING = health_pb2.HealthCheckResponse.SERVING
TIMES = ServiceTimes(0.002, 0.0, 0.001, 0.0, 0.0, 0.0)
READY = admin_pb2.GetStatusResponse(version="0.0.9", engine_state=admin_pb2.ENGINE_STATE_READY, slots=8)


@pytest.fixture
async def servers() -> AsyncIterator[list[RunningServer]]:
    """Yield two real servers in two regions."""
    one, two = (
        make_config(f"server.region={region}", "admission.user_requests_per_s=0") for region in ("us-east", "eu-west")
    )
    async with (
        run_server(one, lambda: ScriptedEngine(letters, TIMES)) as first,
        run_server(two, lambda: ScriptedEngine(letters, TIMES)) as second,
    ):
        yield [first, second]


async def ask_until(server: RunningServer, is_ended: asyncio.Event) -> None:
    number = 0
    while not is_ended.is_set():
        number += 1
        await ask(server.stub, request(f"x{number} = ", sequence=number, max_tokens=4))


async def test_one_interval_of_real_servers_and_one_that_is_down(servers: list[RunningServer], run: Run) -> None:
    is_ended = asyncio.Event()
    asking = asyncio.create_task(ask_until(servers[0], is_ended))
    addresses = ",".join((*(each.ready.admin_address for each in servers), "127.0.0.1:1"))
    result = await run(top, "--admin", addresses, "--once", "--json", "--interval", "0.5")
    is_ended.set()
    await asking
    assert result.exit_code == 1  # one is down
    answer = json.loads(result.stdout)
    first, second, third = answer["servers"]
    assert [each["region"] for each in (first, second)] == ["us-east", "eu-west"]
    assert (first["health"], third["health"], third["figures"]) == ("SERVING", None, None)
    assert "No server answers at 127.0.0.1:1" in third["problem"]
    figures = first["figures"]
    assert figures["requests_per_s"] == answer["all"]["figures"]["requests_per_s"] > 0
    assert figures["outcomes"] == {"length": 1.0}
    assert 0 < figures["stages_ms"]["prefill"]["p50"] <= figures["ttft_ms"]["p95"]
    assert set(figures["stages_ms"]) >= {"admission", "queue", "tokenise", "prefill", "decode_token", "stream"}
    assert (second["figures"]["requests_per_s"], second["figures"]["ttft_ms"]["p50"]) == (0.0, None)


async def test_a_page_for_people_needs_no_terminal(servers: list[RunningServer], run: Run, tmp_path: Path) -> None:
    await ask(servers[0].stub, request(max_tokens=4))
    picture = tmp_path / "top.svg"
    address = servers[0].ready.admin_address
    result = await run(top, "--admin", address, "--once", "--interval", "0.2", "--svg", str(picture))
    assert "us-east" in picture.read_text("utf-8")
    assert result.exit_code == 0
    assert all(part in result.stdout for part in ("us-east", "serving", "prefill", "outcomes"))
    assert "q quits" not in result.stdout


async def test_a_server_without_metrics_shows_its_status(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=READY), SERVING)  # it is older than this call
    result = await run(top, "--admin", fake.address, "--once", "--interval", "0.2")
    assert result.exit_code == 0
    assert "Version 0.0.9 of the server offers no metrics here" in result.stdout
    assert "0/8" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "standard output is no terminal: give --once or --json"),
        (("--json", "--svg", "x.svg"), "--svg is for --once alone"),
        (("--once", "--interval", "0"), "0.2<=x<=300"),
        (("--once", "--admin", "a:1,a:1"), "a:1 is there twice"),
    ],
)
async def test_what_can_not_be_shown_is_refused(run: Run, arguments: tuple[str, ...], fault: str) -> None:
    result = await run(top, *arguments)
    assert result.exit_code == 2
    assert fault in result.stderr


class Terminal:
    """A terminal with the live view of a server in it."""

    def __init__(self, address: str, interval_s: float) -> None:
        self.output = ""
        self._own, other = pty.openpty()
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.settings = termios.tcgetattr(other)
        self._other = other
        arguments = ("-m", "completion_server", "top", "--admin", address, "--interval", str(interval_s))
        actions = [(os.POSIX_SPAWN_DUP2, other, number) for number in range(3)]
        size = {"COLUMNS", "LINES"}  # rich takes them for the size of the terminal
        env = {name: value for name, value in os.environ.items() if name not in size} | {"TERM": "xterm"}
        command = (sys.executable, *arguments)
        self._pid = os.posix_spawn(sys.executable, command, env, file_actions=actions, setsid=True)
        self._status: int | None = None
        os.set_blocking(self._own, False)

    def close(self) -> None:
        """Kill the process, unless it has ended, and close the terminal."""
        if self._exit_status() is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        for descriptor in (self._own, self._other):
            os.close(descriptor)

    def resize(self, lines: int, columns: int) -> None:
        """Change the size, and signal that as the kernel does to a process in the foreground."""
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.kill(self._pid, signal.SIGWINCH)

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    async def wait_for(self, text: str) -> str:
        """Wait until text is written; return what was written before, since the last call."""
        deadline = time.monotonic() + 30
        while text not in self.output:
            self._read()
            assert time.monotonic() < deadline, self.output
            await asyncio.sleep(0.02)
        before, _, self.output = self.output.partition(text)
        return before

    async def wait_end(self) -> int:
        """Wait until the process has ended; return its exit status."""
        deadline = time.monotonic() + 30
        while (status := self._exit_status()) is None:
            self._read()
            assert time.monotonic() < deadline, self.output
            await asyncio.sleep(0.02)
        self._read()
        return status

    def is_as_before(self) -> bool:
        """Return whether the terminal has the settings of the start."""
        return bool(termios.tcgetattr(self._other) == self.settings)

    def _exit_status(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.output += os.read(self._own, 1 << 16).decode(errors="replace")


OpenTerminal = Callable[[str, float], Terminal]


@pytest.fixture
def open_terminal() -> Iterator[OpenTerminal]:
    """Yield a function that shows a server in a terminal; no process outlives the test."""
    with contextlib.ExitStack() as stack:

        def open_one(address: str, interval_s: float) -> Terminal:
            return stack.enter_context(contextlib.closing(Terminal(address, interval_s)))

        yield open_one


async def test_the_live_view_goes_on_until_q_and_leaves_the_terminal_as_it_was(
    serve: Serve, open_terminal: OpenTerminal
) -> None:
    fake = await serve(FakeServer(status=READY), SERVING)
    terminal = open_terminal(fake.address, 0.2)
    await terminal.wait_for("q quits")
    await terminal.wait_for("ready")
    fake.status = admin_pb2.GetStatusResponse(engine_state=admin_pb2.ENGINE_STATE_FAILED)
    await terminal.wait_for("failed")  # a later frame
    terminal.type("xq")
    assert await terminal.wait_end() == 0
    assert "\x1b[?1049l" in terminal.output  # the other screen is back
    assert terminal.is_as_before()


async def test_the_live_view_follows_the_size_of_the_terminal(serve: Serve, open_terminal: OpenTerminal) -> None:
    fake = await serve(FakeServer(status=READY), SERVING)
    terminal = open_terminal(fake.address, 100)
    assert "engine" in await terminal.wait_for("slots")
    terminal.resize(30, 50)  # long before the next reading
    await terminal.wait_for("server")
    assert "engine" not in await terminal.wait_for("in time")
    terminal.type("q")
    assert await terminal.wait_end() == 0
    assert terminal.is_as_before()


async def test_a_terminal_that_is_gone_ends_the_view_without_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    keys: list[str] = []
    is_gone = asyncio.Event()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with reading_keys(keys.append, is_gone.set):
            os.write(controller, b"q")
            await eventually(lambda: bool(keys))
            os.close(controller)
            await asyncio.wait_for(is_gone.wait(), 30)
    assert keys == ["q"]
    assert not failures
