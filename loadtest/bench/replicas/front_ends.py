"""Part `front_ends`: newest-wins between two front ends of one server, in process.

The server's lanes in two processes, joined by its local bus. Users have a request in one, and 2 ms after one another a
newer one in the other: the time is from its acceptance until the older one is ended. And the CPU time that an
announcement takes: of users who stay on one front end, and of those whom the other one has served.
"""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console

from completion_server.core.clock import MonotonicClock
from completion_server.core.run_folder import RunFolder
from completion_server.state.lanes import Announcement
from completion_server.state.local.group import LocalGroup, LocalParent
from completion_server.state.local.lanes import LocalLanes
from loadtest.bench.replicas.servers import Figures, Options
from loadtest.bench.runner.figures import percentile

_MOVES = 1000
_GAP_S = 0.002
_STAYING = 20_000
_TIMEOUT_S = 30.0


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    with RunFolder() as folder:
        return _measure(options, console, folder.path)


def _measure(options: Options, console: Console, folder: Path) -> Figures:
    spawn, parent = multiprocessing.get_context("spawn"), LocalParent(2, MonotonicClock(), folder)
    took_ms: list[float] = []
    costs_us: list[tuple[float, float]] = []
    try:
        for _ in range(options.rounds):
            pipe, end = spawn.Pipe()
            process = spawn.Process(target=_serve_older, args=(parent.group(1), end), daemon=True)
            process.start()
            accepted_at, cost_us = asyncio.run(_serve_newer(parent.group(0), pipe))
            ended_at: dict[str, float] = pipe.recv()
            process.join(_TIMEOUT_S)
            took_ms += [(ended_at[lane] - at) * 1000 for lane, at in accepted_at.items() if lane in ended_at]
            costs_us.append(cost_us)
            console.print(f"round {len(costs_us)}: {len(ended_at)} of {_MOVES} ended", style="dim")
    finally:
        parent.close()
    return {
        "front_ends_supersede_p50_ms": percentile(took_ms, 50),
        "front_ends_supersede_p99_ms": percentile(took_ms, 99),
        "front_ends_supersede_missed": options.rounds * _MOVES - len(took_ms),
        "front_ends_announce_us": min(stay for stay, _move in costs_us),
        "front_ends_announce_moved_us": min(move for _stay, move in costs_us),
    }


def _serve_older(group: LocalGroup, pipe: Connection) -> None:
    """Be the front end with the older requests; send when each was ended."""

    async def main() -> None:
        ended_at: dict[str, float] = {}
        all_ended = asyncio.Event()

        def supersede(lane: str, _stamp: int) -> None:
            ended_at.setdefault(lane, time.monotonic())
            if len(ended_at) == _MOVES:
                all_ended.set()

        bus = group.bus()
        lanes = LocalLanes(bus, group.table(), MonotonicClock(), supersede=supersede, live=list)
        task = asyncio.create_task(bus.run())
        await bus.is_open.wait()
        for number in range(_MOVES):
            lanes.accepted(Announcement(f"user {number}", "older", 1, lanes.stamp()))
        pipe.send("ready")
        await asyncio.wait([asyncio.create_task(all_ended.wait())], timeout=_TIMEOUT_S)
        pipe.send(ended_at)
        task.cancel()

    asyncio.run(main())


async def _serve_newer(group: LocalGroup, pipe: Connection) -> tuple[dict[str, float], tuple[float, float]]:
    """Be the front end with the newer requests; return when each was accepted, and the cost of an announcement."""
    bus = group.bus()
    lanes = LocalLanes(bus, group.table(), MonotonicClock(), supersede=lambda _lane, _stamp: None, live=list)
    task = asyncio.create_task(bus.run())
    await bus.is_open.wait()
    await asyncio.to_thread(pipe.recv)
    accepted_at: dict[str, float] = {}
    moved_us: list[float] = []
    for number in range(_MOVES):
        request = Announcement(f"user {number}", "newer", 1, lanes.stamp())
        accepted_at[request.lane], begun = time.monotonic(), time.thread_time()
        lanes.accepted(request)
        moved_us.append((time.thread_time() - begun) * 1e6)
        await asyncio.sleep(_GAP_S)
    staying = [Announcement(f"other user {number % 100}", "s", number, 0) for number in range(_STAYING)]
    begun = time.thread_time()
    for request in staying:
        lanes.accepted(request)
    stayed_s = time.thread_time() - begun
    task.cancel()
    return accepted_at, (stayed_s / _STAYING * 1e6, percentile(moved_us, 50))
