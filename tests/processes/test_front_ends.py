"""A server with several front ends, as an operator runs it: real processes, a scripted engine, real signals."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import pytest_asyncio

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client import Completion, CompletionClient, Regions
from completion_server.composition import front_ends
from completion_server.composition.front_end import run
from completion_server.composition.links import INTERFACE, PROCESSES, FromFrontEnd, Link, Refused, ToFrontEnd
from completion_server.config import load_config
from completion_server.core.clock import MonotonicClock
from completion_server.core.errors import ConfigError
from completion_server.engine.vllm.process import ENABLE_ENV, PARENT_ENV
from tests.support.server import request
from tests.support.server_process import COMMAND, ServingProcess, flags, serving
from tests.unit.state.local.front_ends import made_parent

NUMBER = 2
SETTINGS = (
    "engine.kind=scripted",
    "engine.scripted_times=instant",
    "server.listen=127.0.0.1:0",
    "server.admin_listen=127.0.0.1:0",
    "server.metrics_listen=127.0.0.1:0",
    "server.http_listen=127.0.0.1:0",
    "admission.users_per_peer=0",
    f"server.processes={NUMBER}",
)
MOST_CONNECTIONS = 64
"""Enough for the kernel to choose each front end at least once."""
WITHIN_S = 120.0
"""For a new process, on machines that are busy with other things."""
pytestmark = pytest.mark.timeout(6 * WITHIN_S)


@dataclass
class Server:
    """A server with two front ends."""

    serving: ServingProcess
    admin: Any
    config: Path

    async def front_ends(self) -> set[int]:
        """Return the ids of the processes that serve."""
        return {each.process_id for each in (await self.status()).front_ends if each.serving}

    async def complete(self, num: int = 1) -> int:
        """Ask over so many connections of their own; return how many were answered."""
        return sum(await asyncio.gather(*(self._complete() for _ in range(num))))

    async def _complete(self) -> bool:
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(self.serving.ready["address"], options=options) as channel:
            answers = [answer async for answer in CompletionServiceStub(channel).Complete(request("def f("))]
            return answers[-1].HasField("end")

    async def status(self) -> admin_pb2.GetStatusResponse:
        found: admin_pb2.GetStatusResponse = await self.admin.GetStatus(admin_pb2.GetStatusRequest())
        return found

    async def seen(self, has: Callable[[admin_pb2.FrontEndStatus], object], num: int = 1) -> set[int]:
        """Wait until so many front ends are as wanted; return the ids of their processes."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = {each.process_id for each in (await self.status()).front_ends if has(each)}
                if len(found) == num:
                    return found
                await asyncio.sleep(0.05)

    async def counted(self) -> float:
        """Return how many requests the metrics page has counted."""
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://{self.serving.ready['metrics_address']}/metrics")).text
        lines = (line for line in page.splitlines() if line.startswith("completion_requests_total{"))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest_asyncio.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "server.toml"
    config.write_text("[shed]\nbudget_ms = 200\n")
    arguments = ("--json", "--config", str(config), *flags(*SETTINGS))
    async with (
        serving(folder, *arguments, within_s=2 * WITHIN_S) as served,
        grpc.aio.insecure_channel(served.ready["admin_address"]) as channel,
    ):
        yield Server(served, AdminServiceStub(channel), config)


async def test_every_front_end_answers(server: Server) -> None:
    assert await server.complete(40) == 40
    assert len(await server.front_ends()) == NUMBER
    async with asyncio.timeout(WITHIN_S):
        while sum((await server.status()).ended_requests.values()) < 40 or await server.counted() < 40:
            await asyncio.sleep(0.1)
    assert [each.serving for each in (await server.status()).front_ends] == [True] * NUMBER


async def test_a_front_end_that_dies_is_replaced_and_its_counts_stay(server: Server) -> None:
    await server.complete(20)
    before, counted = await server.front_ends(), await server.counted()
    victim = min(before)
    psutil.Process(victim).kill()
    async with asyncio.timeout(WITHIN_S):
        while len((await server.front_ends()) - {victim}) < NUMBER:
            await asyncio.sleep(0.1)
    assert before - {victim} <= await server.front_ends()
    assert "died: killed by SIGKILL" in server.serving.log.read_text()
    assert await server.counted() >= counted
    assert await server.complete(20) == 20


async def test_a_front_end_that_hangs_is_replaced(server: Server) -> None:
    before = await server.front_ends()
    victim = min(before)
    psutil.Process(victim).suspend()
    async with asyncio.timeout(WITHIN_S):
        while victim in await server.front_ends() or len(await server.front_ends()) < NUMBER:
            await asyncio.sleep(0.2)
    assert await server.complete(20) == 20


async def test_a_reload_replaces_all_front_ends_and_no_request_is_lost(server: Server) -> None:
    before = await server.front_ends()
    server.config.write_text("[shed]\nbudget_ms = 300\n")
    asking = asyncio.create_task(_ask_until_told(server, told := asyncio.Event()))
    answer = await server.admin.Reload(admin_pb2.ReloadRequest())
    told.set()
    failed = await asking
    assert answer.replaced_front_ends == NUMBER
    assert not before & (await server.front_ends())
    assert failed == []


async def _ask_until_told(server: Server, told: asyncio.Event) -> list[str]:
    """Return why requests failed that were asked again once."""
    failed: list[str] = []
    while not told.is_set():
        for is_last in (False, True):
            try:
                await server.complete()
            except grpc.aio.AioRpcError as error:
                failed += [f"{error.code()}: {error.details()}"] * is_last
            else:
                break
    return failed


async def test_a_reload_names_the_settings_that_need_a_restart(server: Server) -> None:
    server.config.write_text("[engine]\nmax_num_seqs = 65\n")
    before = await server.front_ends()
    with pytest.raises(grpc.aio.AioRpcError, match=r"engine.max_num_seqs: changed, which needs a restart") as error:
        await server.admin.Reload(admin_pb2.ReloadRequest())
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    server.config.write_text("[shed]\nbudget_ms = nothing\n")
    with pytest.raises(grpc.aio.AioRpcError, match="not valid TOML"):
        await server.admin.Reload(admin_pb2.ReloadRequest())
    assert await server.front_ends() == before
    server.config.write_text("")


async def test_a_reload_checks_what_a_start_checks(server: Server) -> None:
    before = await server.front_ends()
    server.config.write_text("[server]\nmax_connections = 1000000000\n")
    with pytest.raises(grpc.aio.AioRpcError, match=r"server\.max_connections: must be at most"):
        await server.admin.Reload(admin_pb2.ReloadRequest())
    server.config.write_text("[shed]\nbudget_ms = 300\n")
    assert await server.front_ends() == before


async def test_sighup_reloads(server: Server) -> None:
    before = await server.front_ends()
    server.serving.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(WITHIN_S):
        while before & (await server.front_ends()) or len(await server.front_ends()) < NUMBER:
            await asyncio.sleep(0.2)


async def test_operators_see_one_server(server: Server) -> None:
    admin = server.serving.ready["admin_address"]
    done = await asyncio.to_thread(
        subprocess.run, [*COMMAND, "status", "--admin", admin, "--json"], capture_output=True, text=True, check=False
    )
    status = json.loads(done.stdout)
    assert done.returncode == 0
    assert len(status["front_ends"]) == NUMBER
    await server.admin.SetLogLevel(admin_pb2.SetLogLevelRequest(level="info"))


async def test_sigterm_ends_all_processes(server: Server) -> None:
    processes = psutil.Process(server.serving.process.pid).children(recursive=True)
    server.serving.process.send_signal(signal.SIGTERM)
    assert await server.serving.ended() == 0
    assert not psutil.wait_procs(processes, timeout=WITHIN_S)[1]


async def test_a_front_end_that_is_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    killing = asyncio.create_task(_kill_first(set(psutil.Process().children())))
    async with serving(tmp_path, "--json", *flags(*SETTINGS), within_s=2 * WITHIN_S) as served:
        await killing
        assert "front end 0 died: killed by SIGKILL" in served.log.read_text()
        assert await Server(served, None, tmp_path).complete(20) == 20


async def _kill_first(others: set[psutil.Process]) -> None:
    """Kill the first front end of a server that is no other child of this process, long before it serves."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            for server in set(psutil.Process().children()) - others:
                for each in server.children():
                    if "--multiprocessing-fork" in each.cmdline():
                        each.kill()
                        return
            await asyncio.sleep(0.02)


async def test_a_server_whose_front_ends_never_start_says_how_they_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "run", _end_at_once)
    async with made_parent(1) as parent:
        config = load_config(None, ["engine.restart_backoff_min_s=0.01"], {})
        started = front_ends.FrontEnds(
            config, 1, MonotonicClock(), parent.group, parent.clear, lambda _page: None, lambda: None
        )
        await started.start()
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(ConfigError, match="front end 0 ended at its start: exit status 3"):
                await started.wait_serving()
        started.kill()


def _end_at_once(*_: object) -> None:
    os._exit(3)


async def test_front_ends_end_with_their_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENABLE_ENV, "1")  # as in a process of an engine, which ends with another parent
    monkeypatch.setenv(PARENT_ENV, "1")
    async with serving(tmp_path, "--json", *flags(*SETTINGS), within_s=WITHIN_S) as served:
        processes = psutil.Process(served.process.pid).children(recursive=True)
        served.process.kill()
        await served.ended()
        assert not psutil.wait_procs(processes, timeout=WITHIN_S)[1]


@pytest.mark.parametrize(
    ("interface", "version", "reason"),
    [(INTERFACE + 1, "", "needs a restart of the server"), (INTERFACE, "0.0.1", "see reload --code")],
)
async def test_code_that_does_not_fit_the_parent_says_so_before_it_reads_the_plan(
    interface: int, version: str, reason: str
) -> None:
    ours, theirs = socket.socketpair()
    process = PROCESSES.Process(target=run, args=(interface, version, b"not a plan", theirs))
    process.start()
    theirs.close()
    received: asyncio.Queue[FromFrontEnd] = asyncio.Queue()
    link: Link[FromFrontEnd, ToFrontEnd] = Link(received.put_nowait, lambda: None)
    await link.open(ours)
    refused = await asyncio.wait_for(received.get(), WITHIN_S)
    assert isinstance(refused, Refused)
    assert reason in refused.reason
    await asyncio.to_thread(process.join, WITHIN_S)
    assert process.exitcode == 0


async def test_the_slots_of_a_front_end_that_dies_are_free(tmp_path: Path) -> None:
    slow = ("engine.scripted_times=large_model_on_a_gpu", "scheduling.max_slots=1", "scheduling.step_tolerance=0")
    alone = ("engine.restart_backoff_max_s=600", "engine.restart_backoff_min_s=600")  # a new one would free them, too
    async with AsyncExitStack() as stack:
        arguments = ("--json", *flags(*SETTINGS, *slow, *alone, "shed.when=never"))
        served = await stack.enter_async_context(serving(tmp_path, *arguments, within_s=2 * WITHIN_S))
        admin = await stack.enter_async_context(grpc.aio.insecure_channel(served.ready["admin_address"]))
        server = Server(served, AdminServiceStub(admin), tmp_path)
        regions = await stack.enter_async_context(Regions(served.ready["address"]))
        connections: dict[int, int] = {}
        """By the front end that the kernel chose for each."""
        for number in range(MOST_CONNECTIONS):
            client = await stack.enter_async_context(CompletionClient(regions, connection=number))
            async with client.session():
                (front_end,) = await server.seen(lambda each: each.live_sessions)
            connections.setdefault(front_end, number)
            if len(connections) == NUMBER:
                break
            assert await server.seen(lambda each: not each.live_sessions, NUMBER)
        (holder, its), (other, others) = connections.items()

        def ask(user: str, connection: int) -> "asyncio.Task[Completion]":
            return asyncio.create_task(CompletionClient(regions, user=user, connection=connection).complete(request()))

        held = [ask(f"user-{number}", its) for number in range(20)]  # so that one is always in the slot
        assert await server.seen(lambda each: each.running_requests) == {holder}
        psutil.Process(holder).suspend()
        last = ask("last", others)
        await server.seen(lambda each: each.process_id == other and each.queued_requests)
        assert not last.done()
        psutil.Process(holder).kill()
        async with asyncio.timeout(WITHIN_S):
            assert (await last).finish_reason == "stop"
            await asyncio.gather(*held, return_exceptions=True)
