"""The examples of docs/plugin.md, each built as a plugin's author would, on a real server."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from operator import le
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ServiceTimes
from tests.support.fault_proxy import FaultProxy
from tests.support.kustomize import report
from tests.support.models import ROOT
from tests.support.node_modules import EDITORS, install_packed_stubs, require_node, run
from tests.support.redis_servers import free_port
from tests.support.server import ENDLESS, RunningServer, endless_config, endless_engine, eventually, run_server
from tests.support.vocabularies import embedded

EXAMPLES = EDITORS / "examples"
CONTRACT = "completion/v1/completion.proto"
LINE_WITHIN_S = 60.0
ANSWER = "a + '😀'"
ANSWER_UTF16 = 8
BACKOFF_FIRST_MS, BACKOFF_LAST_MS = 100, 5_000
RETRY_AFTER_MS = 1_000

Command = tuple[str | Path, ...]


async def build_python(folder: Path) -> Command:
    out = ("--python_out=.", "--grpc_python_out=.")
    await run(sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *out, CONTRACT, cwd=folder)
    return sys.executable, folder / "plugin.py"


async def build_typescript(folder: Path) -> Command:
    require_node()
    await install_packed_stubs(folder)
    await run("npm", "run", "build", cwd=folder)
    return "node", folder / "plugin.js"


async def build_go(folder: Path) -> Command:
    """Build with Debian's packages, which need no network: the plugin is a folder of a GOPATH."""
    go = shutil.which("go")
    packages = Path(go).parent.parent / "share" / "gocode" if go else folder
    if not go or not shutil.which("protoc-gen-go-grpc") or not (packages / "src/google.golang.org/grpc").exists():
        report(
            "Go not found; on Debian: apt-get install golang-go protoc-gen-go protoc-gen-go-grpc "
            "golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev"
        )
    module = folder / "gopath" / "src" / "example.com" / "plugin"
    module.mkdir(parents=True)
    shutil.copy(folder / "plugin.go", module)
    options = f"module=example.com/plugin,M{CONTRACT}=example.com/plugin/completion/v1"
    out = ("--go_out=.", "--go-grpc_out=.", f"--go_opt={options}", f"--go-grpc_opt={options}")
    await run(sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *out, CONTRACT, cwd=module)
    await run(
        go, "build", "-o", "plugin", "example.com/plugin", cwd=folder,
        GO111MODULE="off", GOPATH=f"{folder / 'gopath'}:{packages}", GOFLAGS="-p=2",
    )  # fmt: skip
    return (folder / "plugin",)


BUILDS: dict[str, Callable[[Path], Coroutine[Any, Any, Command]]] = {
    "python": build_python,
    "typescript": build_typescript,
    "go": build_go,
}
# Go takes 600 MB of Debian's packages, and half a minute to build gRPC.
LANGUAGES = [
    "python",
    pytest.param("typescript", marks=pytest.mark.full),
    pytest.param("go", marks=pytest.mark.large),
]


@pytest_asyncio.fixture(scope="module", params=LANGUAGES)
async def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Command:
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copytree(EXAMPLES / request.param, folder, dirs_exist_ok=True)
    return await BUILDS[request.param](folder)


@dataclass
class Plugin:
    """A running example."""

    process: asyncio.subprocess.Process
    log: Path
    lines: list[str] = field(default_factory=list)

    def do(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def line(self, pattern: str) -> str:
        """Read lines up to one that matches a pattern from its start; return that one."""
        assert self.process.stdout is not None
        why = "before the output ended"
        try:
            async with asyncio.timeout(LINE_WITHIN_S):
                while raw := await self.process.stdout.readline():
                    self.lines.append(raw.decode().rstrip("\n"))
                    if re.match(pattern, self.lines[-1]):
                        return self.lines[-1]
        except TimeoutError:
            why = f"within {LINE_WITHIN_S} s"
        pytest.fail(f"no line {pattern!r} {why}; lines: {self.lines}; log: {self.log.read_text()}")

    async def ask(self, document: str, reason: str = "STOP") -> None:
        self.do(f"type {document}")
        await self.line(rf"end \d+ {reason}")

    @property
    def shown(self) -> str:
        """The last text that was shown."""
        texts = [line.split(" ", 2)[2] for line in self.lines if line.startswith("show ")]
        return str(json.loads(texts[-1]))


@asynccontextmanager
async def running(command: Command, address: str, folder: Path) -> AsyncIterator[Plugin]:
    """Run an example until the context ends, which ends its input."""
    log = folder / "plugin.log"
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *command,
            address,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            cwd=Path(command[-1]).parent,
        )
    assert process.stdin is not None
    try:
        yield Plugin(process, log)
        process.stdin.close()
        async with asyncio.timeout(LINE_WITHIN_S):
            await process.wait()
        assert process.returncode == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def script(request: GenerationRequest) -> Iterable[str]:
    """Continue "slow = " without end, and anything else with ANSWER."""
    prompt = embedded().decode(list(request.prompt_token_ids), skip_special_tokens=False) + request.begins_with
    before = re.sub(r"<\|fim_suffix\|>.*<\|fim_middle\|>", "", prompt, flags=re.DOTALL)
    return (f" w{number}" for number in range(ENDLESS)) if before.endswith("slow = ") else ("a", ANSWER[1:], "\n")


def serving(*settings: str) -> AbstractAsyncContextManager[RunningServer]:
    config = endless_config(f"limits.default_tokens_single_line={ENDLESS}", *settings)
    return run_server(config, lambda: endless_engine(script, ServiceTimes(decode_base_s=0.005)))


async def test_types_on_accepts_and_dismisses(command: Command, tmp_path: Path) -> None:
    async with (
        serving("limits.max_prefix_bytes=1000") as server,
        running(command, server.ready.address, tmp_path) as plugin,
    ):

        def num_reports(kind: str) -> float:
            return server.count("completion_feedback_total", kind=kind)

        await plugin.line("connected")
        await plugin.ask("x = ")
        assert plugin.shown == ANSWER
        await eventually(lambda: num_reports("shown") == 1)
        plugin.do("accept")
        await plugin.line("accepted")
        await eventually(lambda: num_reports("accepted") == 1)
        assert server.count("completion_accepted_characters_total") == ANSWER_UTF16

        plugin.do("type slow = ")
        await plugin.line("show 2 .*w1")
        plugin.do("type y = ")
        await plugin.line("hide")
        await plugin.line("end 2 SUPERSEDED")
        await plugin.line("end 3 STOP")
        assert plugin.shown == ANSWER
        plugin.do("dismiss")
        await eventually(lambda: num_reports("rejected") == 1)

        plugin.do("type slow = ")
        await plugin.line("show 4 .*w1")
        plugin.do("dismiss")
        await plugin.line("end 4 CANCELLED")

        await plugin.ask("x" * 2_000, "ERROR")
        assert plugin.lines[-2].startswith("error prefix")
        await plugin.ask("z = ")
        assert plugin.shown == ANSWER
    assert not [line for line in plugin.lines if line.startswith(("refused", "lost"))]


async def test_asks_nothing_for_a_time_after_a_shed_request(command: Command, tmp_path: Path) -> None:
    async with (
        serving("admission.user_requests_per_s=0.1") as server,
        running(command, server.ready.address, tmp_path) as plugin,
    ):
        await plugin.line("connected")
        await plugin.ask("x = ", "STOP")
        await plugin.ask("y = ", "SHED")
        plugin.do("type z = ")
        await plugin.line("quiet")
        plugin.do("accept")  # nothing is shown
    assert not [line for line in plugin.lines if line.startswith(("accepted", "lost", "refused"))]


async def test_opens_another_stream_for_one_that_is_old(command: Command, tmp_path: Path) -> None:
    async with (
        serving("server.max_session_age_s=0.5", "admission.user_requests_per_s=0") as server,
        running(command, server.ready.address, tmp_path) as plugin,
    ):
        await plugin.line("connected")
        while plugin.lines.count("rest") < 3:
            await plugin.ask("x = ")
            assert plugin.shown == ANSWER
            await asyncio.sleep(0.02)
    assert not [line for line in plugin.lines if line.startswith("lost")]


async def test_reconnects_after_a_lost_connection_and_a_restart(command: Command, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(serving(f"server.listen={address}"))
        proxy = await stack.enter_async_context(FaultProxy(address))
        plugin = await stack.enter_async_context(running(command, proxy.address, tmp_path))
        await plugin.line("connected")
        await plugin.ask("x = ")

        plugin.do("type slow = ")
        await plugin.line("show 2 .*w1")
        proxy.reset_all()
        await plugin.line("hide")
        await plugin.line("lost -")
        await plugin.line("connected")
        await plugin.ask("x = ")
        assert plugin.shown == ANSWER

        await first.aclose()
        await plugin.line("lost DRAINING")
        num_before = len(plugin.lines) - 1
        plugin.do("type x = ")
        await plugin.line("away")
        for _ in range(2):
            await plugin.line("lost -")

        await stack.enter_async_context(serving(f"server.listen={address}"))
        await plugin.line("connected")
        waits_ms = [int(line.split()[2]) for line in plugin.lines[num_before:] if line.startswith("lost")]
        bounds_ms = [min(BACKOFF_LAST_MS, BACKOFF_FIRST_MS * 2**count) for count in range(len(waits_ms))]
        assert all(map(le, waits_ms, bounds_ms)), waits_ms
        await plugin.ask("x = ")
        assert plugin.shown == ANSWER
        assert not [line for line in plugin.lines if line.startswith("refused")]


async def test_waits_as_long_as_a_full_server_asks(command: Command, tmp_path: Path) -> None:
    settings = ("admission.max_sessions=1", f"admission.retry_after_ms={RETRY_AFTER_MS}")
    async with serving(*settings) as server:
        other = server.stub.Session()
        await other.initial_metadata()
        async with running(command, server.ready.address, tmp_path) as plugin:
            wait_ms = int((await plugin.line("lost SERVER_FULL")).split()[2])
            other.cancel()
            await plugin.line("connected")
            await plugin.ask("x = ")
    assert RETRY_AFTER_MS <= wait_ms <= RETRY_AFTER_MS + BACKOFF_FIRST_MS
