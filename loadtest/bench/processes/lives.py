"""Kills front ends and reloads them all, under load, and measures what users of the client library notice.

Each user has a connection of its own and asks twice a second, half of them on a session, half by single calls. A
request that fails is asked once more as soon as the user is connected; one that fails again is lost.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import psutil
from rich.console import Console
from rich.progress import track

from completion.v1 import admin_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_client.client import CompletionClient
from completion_client.endpoint import Endpoint
from completion_client.errors import ServiceError
from completion_client.regions.regions import Regions
from completion_client.session import Session
from loadtest.bench.attacks.attack import typed
from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import percentile, shown, text_table
from loadtest.bench.runner.loops import open_loop
from loadtest.bench.runner.server import SCRIPTED, SERVES_ALL, ServerProcess

if TYPE_CHECKING:
    from completion.v1.admin_pb2_grpc import AdminServiceAsyncStub

_FRONT_ENDS, _USERS, _REQUESTS_PER_S = 2, 24, 2.0
_ANSWER_S, _RETRY_S, _POLL_S = 5.0, 1.0, 0.05
_REPLACED_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    kills: int = option(10, "How often a front end is killed (SIGKILL).", None)
    reloads: int = option(50, "How often all front ends are replaced.", None)


@dataclass
class _Users:
    """Editors, and what they noticed."""

    clients: list[CompletionClient]
    sessions: list[Session] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    away_ms: list[float] = field(default_factory=list)
    """From the loss of each session's stream to the first sign of the server on the next."""
    back: asyncio.Event = field(default_factory=asyncio.Event)
    """Set for a moment when a session is connected again."""

    def on_lost(self, error: ServiceError) -> None:
        self.counts["lost_streams"] += 1

    def on_reconnected(self, away_s: float) -> None:
        self.away_ms.append(1000 * away_s)
        self.back.set()
        self.back.clear()

    async def ask(self, number: int, _due: float) -> None:
        """Ask as one of the users; once more if that fails."""
        user = number % len(self.clients)
        self.counts["requests"] += 1
        for name in ("failed_once", "lost"):
            try:
                await self._complete(user, number)
            except ServiceError:
                self.counts[name] += 1
                await self._connected(user)
            else:
                return

    async def _complete(self, user: int, number: int) -> None:
        request = typed(f"user-{user}", number + 1)
        if user < len(self.sessions):
            await self.sessions[user].complete(request, timeout_s=_ANSWER_S)
        else:
            await self.clients[user].complete(request, timeout_s=_ANSWER_S)

    async def _connected(self, user: int) -> None:
        """Wait until the user's session has a stream, up to a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_S):
                while user < len(self.sessions) and not self.sessions[user].is_connected:
                    await self.back.wait()


@benchmark(_Options, TimeoutError)
def main(options: _Options, console: Console) -> Result:
    """Kill and reload front ends under load. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.processes.lives --kills 3 --reloads 5
    """
    overrides = (*SERVES_ALL, *SCRIPTED, f"server.processes={_FRONT_ENDS}", *options.overrides)
    with ServerProcess(options.config, overrides) as server:
        figures = asyncio.run(_measure(server, options, console))
    rows = tuple((name, *(shown(each.get(name), 3) for each in figures.values())) for name in figures["kills"])
    return Result(figures, [text_table("", ("", *figures), rows)])


async def _measure(server: ServerProcess, options: _Options, console: Console) -> dict[str, dict[str, float]]:
    """Return the figures of the kills and of the reloads."""
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.ready["admin_address"]))
        admin, endpoint = AdminServiceStub(channel), Endpoint(server.ready["address"])
        regions = Regions(endpoint)
        stack.push_async_callback(regions.aclose)
        regions.start_nowait()
        clients = [CompletionClient(regions, user=f"user-{user}", connection=user) for user in range(_USERS)]
        users = _Users([await stack.enter_async_context(each) for each in clients])
        for client in clients[: _USERS // 2]:
            users.sessions.append(await stack.enter_async_context(client.session(listener=users)))
        found = {}
        for name, times, act in (("kills", options.kills, _kill), ("reloads", options.reloads, _reload)):
            found[name] = await _under_load(users, admin, times, act, console)
        return found


async def _under_load(
    users: _Users,
    admin: "AdminServiceAsyncStub",
    times: int,
    act: Callable[["AdminServiceAsyncStub", int], Awaitable[None]],
    console: Console,
) -> dict[str, float]:
    """Do something again and again while the users ask; return what they noticed."""
    users.counts.clear()
    users.away_ms.clear()
    took_s = []
    told = asyncio.Event()
    asking = asyncio.create_task(_ask_until(users, told))
    for number in track(range(times), act.__name__.strip("_"), console=console):
        began = time.monotonic()
        await act(admin, number)
        took_s.append(time.monotonic() - began)
    told.set()
    await asking
    return {
        "times": times,
        "took_s": percentile(took_s, 50),
        "requests": users.counts["requests"],
        "failed_once": users.counts["failed_once"],
        "lost": users.counts["lost"],
        "lost_streams": users.counts["lost_streams"],
        "away_ms_p50": percentile(users.away_ms, 50),
        "away_ms_p99": percentile(users.away_ms, 99),
    }


async def _ask_until(users: _Users, told: asyncio.Event) -> None:
    while not told.is_set():
        await open_loop(_USERS * _REQUESTS_PER_S, 1.0, users.ask)


async def _kill(admin: "AdminServiceAsyncStub", number: int) -> None:
    """Kill a front end, and wait for the one that replaces it and for what users notice."""
    before = await _serving(admin)
    victim = sorted(before)[number % len(before)]
    psutil.Process(victim).send_signal(signal.SIGKILL)
    async with asyncio.timeout(_REPLACED_S):
        while True:
            if len((await _serving(admin)) - {victim}) == _FRONT_ENDS:
                return
            await asyncio.sleep(_POLL_S)


async def _reload(admin: "AdminServiceAsyncStub", _number: int) -> None:
    await admin.Reload(pb.ReloadRequest())


async def _serving(admin: "AdminServiceAsyncStub") -> set[int]:
    status = await admin.GetStatus(pb.GetStatusRequest())
    return {each.process_id for each in status.front_ends if each.serving}


if __name__ == "__main__":
    main()
