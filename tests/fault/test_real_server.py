"""The server as an operator runs it: its own process, a real engine, real signals."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.models import DRAFT, ROOT, TARGET
from tests.support.server import ask, request

SERVING = health_pb2.HealthCheckResponse.SERVING
HANG_TIMEOUT_S = 3.0
COMMAND = (sys.executable, "-m", "completion_server")


@dataclass
class ServerProcess:
    process: asyncio.subprocess.Process
    ready: dict[str, str]
    channel: grpc.aio.Channel

    @property
    def stub(self) -> CompletionServiceStub:
        return CompletionServiceStub(self.channel)

    def engine_core(self) -> psutil.Process:
        """Return the engine core's process."""
        children = psutil.Process(self.process.pid).children()
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
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
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
heartbeat_s = 1.0
""")
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "serve",
            "--json",
            "--config",
            str(config),
            "--set",
            "shed.lag_ms=0",
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
        )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 90)
    assert line, (folder / "log").read_text()
    ready = json.loads(line)
    try:
        async with grpc.aio.insecure_channel(ready["address"]) as channel:
            yield ServerProcess(process, ready, channel)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def run(*args: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *args], input=stdin, capture_output=True, text=True, timeout=60, check=False)


async def final_code(server: ServerProcess, sequence: int) -> grpc.StatusCode:
    """Keep asking for long completions until one ends with an error."""
    while True:
        answer = await ask(server.stub, request(sequence=sequence, mode=2, max_tokens=128, session_id="long"))
        if answer.code is not grpc.StatusCode.OK:
            return answer.code


async def test_the_ready_line_names_what_a_person_needs(server: ServerProcess) -> None:
    assert server.ready["event"] == "ready"
    assert server.ready["model"] == str(TARGET)
    assert server.ready["draft_model"] == str(DRAFT)
    assert server.ready["num_speculative_tokens"] == 4
    assert re.fullmatch(r"127\.0\.0\.1:\d+", server.ready["address"])
    assert await server.health() == SERVING


async def test_the_commands_ask_it(server: ServerProcess, tmp_path: Path) -> None:
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
        run, "profile", "--requests", "4", "--json", *where, str(ROOT / "completion_server" / "app.py")
    )
    assert profile.returncode == 0, profile.stderr


async def test_a_killed_engine_is_replaced(server: ServerProcess) -> None:
    where = ("--admin", server.ready["admin_address"])
    done = await asyncio.to_thread(run, "speculation", "set", "--k", "2", *where)
    assert done.returncode == 0, done.stderr
    asking = asyncio.create_task(final_code(server, 1))
    await asyncio.sleep(0.2)
    server.engine_core().kill()
    assert await asyncio.wait_for(asking, 2) is grpc.StatusCode.UNAVAILABLE
    await server.until_serving(is_serving=False, timeout_s=2)
    await server.until_serving(is_serving=True, timeout_s=90)
    answer = await ask(server.stub, request(session_id="after"))
    assert answer.code is grpc.StatusCode.OK
    shown = await asyncio.to_thread(run, "speculation", "get", "--json", *where)
    assert shown.returncode == 0, shown.stderr
    speculation = json.loads(shown.stdout)
    assert {row[2] for row in speculation["schedule"]} == {2}
    assert speculation["mode"] == "fixed"
    assert "@" in speculation["by"]


async def test_an_engine_that_hangs_is_replaced(server: ServerProcess) -> None:
    core = server.engine_core()
    asking = asyncio.create_task(final_code(server, 2))
    await asyncio.sleep(0.2)
    core.suspend()
    assert await asyncio.wait_for(asking, HANG_TIMEOUT_S + 5) is grpc.StatusCode.UNAVAILABLE
    await server.until_serving(is_serving=False, timeout_s=2)
    await server.until_serving(is_serving=True, timeout_s=90)
    assert not core.is_running()


async def test_sigterm_finishes_what_was_accepted_and_leaves_nothing(server: ServerProcess) -> None:
    core = server.engine_core()
    workers = core.children(recursive=True)
    call = server.stub.Complete(request(mode=2, max_tokens=128, session_id="last"))
    events = aiter(call)
    await anext(events)
    server.process.send_signal(signal.SIGTERM)
    last = [event async for event in events][-1]
    assert last.WhichOneof("event") == "end"
    assert last.end.finish_reason in {1, 2}
    assert await asyncio.wait_for(server.process.wait(), 30) == 0
    _gone, alive = await asyncio.to_thread(psutil.wait_procs, [core, *workers], timeout=5)
    assert not alive
