"""The server as an operator runs it: its own process, a real engine, real signals."""

import asyncio
import json
import re
import resource
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.models import DRAFT, ROOT, TARGET
from tests.support.server import ask, request
from tests.support.server_process import COMMAND, ServingProcess, serving

pytestmark = pytest.mark.serial

SERVING = health_pb2.HealthCheckResponse.SERVING
HANG_TIMEOUT_S = 3.0
START_TIMEOUT_S = 300.0
"""For machines that are busy with other things; a start on two idle cores takes 20 s."""
STAGES = (
    "draining: 1 requests to finish",
    "closing sessions and connections",
    "ending the server's tasks",
    "closing the listeners",
    "stopping the engine",
    "stopped",
)
README = (ROOT / "README.md").read_text(encoding="utf-8")


@dataclass
class RealServer:
    """A server process with a real engine."""

    serving: ServingProcess
    channel: grpc.aio.Channel

    @property
    def ready(self) -> dict[str, Any]:
        return self.serving.ready

    @property
    def stub(self) -> CompletionServiceStub:
        return CompletionServiceStub(self.channel)

    def engine_core(self) -> psutil.Process:
        """Return the engine core's process."""
        children = psutil.Process(self.serving.process.pid).children()
        return next(child for child in children if "EngineCore" in " ".join(child.cmdline()))

    async def health(self) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        check = health_pb2.HealthCheckRequest(service="completion.v1.CompletionService")
        return int((await stub.Check(check, timeout=5)).status)

    async def until_serving(self, *, is_serving: bool, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while (await self.health() == SERVING) is not is_serving:
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealServer]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "server.toml"
    config.write_text(f"""
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
metrics_listen = "127.0.0.1:0"
[engine]
model = "{TARGET}"
draft_model = "{DRAFT}"
hang_timeout_s = {HANG_TIMEOUT_S}
enforce_eager = true
[speculation]
mode = "fixed"
""")
    arguments = ("--json", "--config", str(config), "--set", "shed.lag_ms=0")
    async with (
        serving(folder, *arguments, within_s=START_TIMEOUT_S) as process,
        grpc.aio.insecure_channel(process.ready["address"]) as channel,
    ):
        yield RealServer(process, channel)


def run(*args: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *args], input=stdin, capture_output=True, text=True, timeout=60, check=False)


async def final_code(server: RealServer, sequence: int) -> grpc.StatusCode:
    """Keep asking for long completions until one ends with an error."""
    while True:
        answer = await ask(server.stub, request(sequence=sequence, mode=2, max_tokens=128, session_id="long"))
        if answer.code is not grpc.StatusCode.OK:
            return answer.code


async def test_neither_the_server_nor_its_engine_may_leave_a_core_dump(server: RealServer) -> None:
    for process in (psutil.Process(server.serving.process.pid), server.engine_core()):
        assert set(process.rlimit(resource.RLIMIT_CORE)) <= {0, 1}


async def test_its_start_said_what_it_did(server: RealServer) -> None:
    """Loading a real engine takes longer than the interval of these lines, which is three seconds."""
    assert re.search(r"loading the models: \d+ s", server.serving.log.read_text())


async def test_the_commands_work_against_the_server(server: RealServer, tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("def add(a, b):\n    return \n")
    where = ("--server", server.ready["address"])
    answered = await asyncio.to_thread(run, "complete", f"{source}:2", "--json", *where)
    assert answered.returncode == 0, answered.stderr
    answer = json.loads(answered.stdout)
    assert answer["finish_reason"] in {"stop", "length"}
    assert "\n" not in answer["text"]
    assert answer["usage"]["drafted_tokens"] >= answer["usage"]["accepted_draft_tokens"] >= 0
    status = await asyncio.to_thread(run, "status", "--json", "--admin", server.ready["admin_address"])
    assert status.returncode == 0, status.stderr
    profile = await asyncio.to_thread(
        run, "profile", "--requests", "4", "--json", *where, str(ROOT / "completion_server" / "app" / "app.py")
    )
    assert profile.returncode == 0, profile.stderr


def readme_examples() -> list[tuple[str, list[str]]]:
    """Return the text and the arguments of each completion that README asks for on standard input."""
    found = re.findall(r"^(printf .*?) \| \.venv/bin/completion-server (complete .*?)(?: +#.*)?$", README, re.MULTILINE)
    assert any("--mode multi" in command for _, command in found), "README shows no block"
    options = {"capture_output": True, "text": True, "timeout": 10, "check": True}
    shell = [subprocess.run(["sh", "-c", text], **options) for text, _ in found]
    return [(done.stdout, shlex.split(command)) for done, (_, command) in zip(shell, found, strict=True)]


async def test_the_examples_of_readme_show_text(server: RealServer) -> None:
    for text, command in readme_examples():
        answered = await asyncio.to_thread(run, *command, "--server", server.ready["address"], stdin=text)
        assert answered.returncode == 0, answered.stderr
        assert answered.stdout.strip(), f"no text after {text!r}"


async def speculation(server: RealServer, *args: str) -> dict[str, Any]:
    """Run `completion-server speculation` and return its JSON output."""
    where = ("--admin", server.ready["admin_address"])
    done = await asyncio.to_thread(run, "speculation", *args, "--json", *where)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def drafted(server: RealServer, sequence: int) -> int:
    """Return how many draft tokens a longer completion took."""
    answer = await ask(server.stub, request(sequence=sequence, mode=2, max_tokens=48, session_id=f"drafts-{sequence}"))
    assert answer.end is not None, answer.details
    return answer.end.usage.drafted_tokens


async def test_the_server_chooses_k(server: RealServer) -> None:
    assert (await speculation(server, "set", "--auto"))["mode"] == "auto"
    await asyncio.gather(*(drafted(server, sequence) for sequence in range(1, 13)))
    for sequence in range(13, 21):
        await drafted(server, sequence)
    shown = await speculation(server, "get")
    assert shown["mode"] == "auto"
    assert "@" in shown["by"]
    assert {row[2] for row in shown["table"]} == {4}
    assert shown["figures"]["drafted_tokens"] > 0
    log = server.serving.log.read_text()
    assert "no longer chosen" not in log
    assert "Traceback" not in log


@pytest.mark.parametrize("fail", [psutil.Process.suspend, pytest.param(psutil.Process.kill, marks=pytest.mark.full)])
async def test_an_engine_that_hangs_or_dies_is_replaced_and_the_schedule_stays(
    server: RealServer, tmp_path: Path, fail: Callable[[psutil.Process], None]
) -> None:
    rows = [[1, 2, 0], [3, 8, 2], [9, 64, 1]]  # two, as a heartbeat may run beside the request
    schedule = tmp_path / "schedule.json"
    schedule.write_text(json.dumps(rows))
    await speculation(server, "set", "--schedule", str(schedule))
    before = await speculation(server, "get")
    core = server.engine_core()
    asking = asyncio.create_task(final_code(server, 1))
    await asyncio.sleep(0.2)
    fail(core)
    assert await asyncio.wait_for(asking, HANG_TIMEOUT_S + 20) is grpc.StatusCode.UNAVAILABLE
    await server.until_serving(is_serving=False, timeout_s=20)
    await server.until_serving(is_serving=True, timeout_s=START_TIMEOUT_S)
    assert not core.is_running()
    after = await speculation(server, "get")
    assert after["schedule"] == rows
    for key in ("schedule", "mode", "by", "since_unix_ms"):
        assert after[key] == before[key]
    assert await drafted(server, 101) == 0
    await speculation(server, "set", "--k", "2")
    assert await drafted(server, 102) > 0


def files_of(processes: list[psutil.Process]) -> list[Path]:
    """Return the shared memory and the socket files of processes."""
    memory = [Path(file.path) for process in processes for file in process.open_files()]
    sockets = [Path(str(each.laddr)) for process in processes for each in process.net_connections("unix")]
    return [*(file for file in memory if file.parent == Path("/dev/shm")), *filter(Path.is_socket, sockets)]


async def test_sigterm_finishes_accepted_requests_and_leaves_nothing(server: RealServer) -> None:
    core = server.engine_core()
    workers = core.children(recursive=True)
    files = files_of([core, *workers])
    assert {"/dev/shm", "/tmp"} <= {str(file.parent) for file in files}
    call = server.stub.Complete(request(mode=2, max_tokens=128, session_id="last"))
    events = aiter(call)
    await anext(events)
    server.serving.process.send_signal(signal.SIGTERM)
    last = [event async for event in events][-1]
    assert last.WhichOneof("event") == "end"
    assert last.end.finish_reason in {1, 2}
    assert await server.serving.ended() == 0
    _gone, alive = await asyncio.to_thread(psutil.wait_procs, [core, *workers], timeout=5)
    assert not alive
    assert not [file for file in files if file.exists()]
    log = server.serving.log.read_text()
    places = [log.rfind(f'"{stage}"') for stage in STAGES]
    assert -1 not in places
    assert places == sorted(places)
    assert "leaked" not in log
