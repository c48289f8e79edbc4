"""A group of front ends in several processes, and the limits that they share."""

import asyncio
import multiprocessing
import pickle
import stat
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from completion_server.limits.replicas import Replica
from completion_server.limits.shared import SharedLimits
from completion_server.limits.shares import DemandReport
from completion_server.state.local.board import LocalBoard
from completion_server.state.local.group import LocalParent
from tests.support.server import eventually
from tests.unit.state.local.front_ends import CLOCK, FrontEnd, hold, made_parent, running

SPAWN = multiprocessing.get_context("spawn")
BUSY_S = 1.1
"""After this time a busy key is reported again."""


async def said(pipe: Connection, expected: str) -> None:
    await eventually(pipe.poll)
    assert pipe.recv() == expected


@pytest.mark.parametrize("num", [2, 3])
async def test_one_request_of_a_lane_lives_over_processes(num: int) -> None:
    async with made_parent(num) as parent:
        pipes = []
        for place in range(1, num):
            pipe, end = SPAWN.Pipe()
            process = SPAWN.Process(target=hold, args=(parent.group(place), end), daemon=True)
            process.start()
            await said(pipe, "ready")
            pipes.append((pipe, process))
        front_end = FrontEnd(parent.group(0))
        async with running(front_end.member.bus):
            request = front_end.accept("lane", "session", 1)
            for pipe, process in pipes:
                await said(pipe, "superseded")
                process.join(30)
            await asyncio.sleep(0.05)
            assert front_end.live == {"lane": request}


async def test_a_killed_front_end_does_no_harm() -> None:
    async with made_parent(2) as parent:
        pipe, end = SPAWN.Pipe()
        process = SPAWN.Process(target=hold, args=(parent.group(1), end), daemon=True)
        process.start()
        await said(pipe, "ready")
        process.kill()
        process.join(30)
        front_end = FrontEnd(parent.group(0))
        async with running(front_end.member.bus):
            front_end.accept("lane", "session", 1)
            assert front_end.member.bus.stats.num_lost == 1
            parent.clear(1)
            request = front_end.accept("lane", "session", 2)
            assert front_end.member.bus.stats.num_lost == 1
            assert front_end.live == {"lane": request}


def test_the_folder_is_private_and_removed() -> None:
    parent = LocalParent(2, CLOCK)
    folder = Path(pickle.loads(pickle.dumps(parent.group(1))).folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    parent.close()
    assert not folder.exists()
    with pytest.raises(OSError, match="No such file"):
        parent.group(0).table()


async def exchange(*found: SharedLimits) -> None:
    for each in found:
        await each.exchange()


async def test_sessions_are_limited_over_front_ends_and_freed_with_one() -> None:
    async with made_parent(2) as parent:
        a, b = (FrontEnd(parent.group(place)).member for place in (0, 1))
        async with running(a.bus), running(b.bus):
            await exchange(a.limiters, b.limiters)
            first, second = (each.limiters.sessions("sessions", 4) for each in (a, b))
            opened = 0
            for _ in range(3):
                while not first.is_full("u"):
                    first.enter("u")
                    opened += 1
                await asyncio.sleep(BUSY_S)
                await exchange(a.limiters)
            assert opened == 4
            second.enter("u")  # a front end gives a key that is new to it one at once
            await exchange(b.limiters)
            assert second.is_full("u")
            parent.clear(0)
            await asyncio.sleep(BUSY_S)
            await exchange(b.limiters)
            assert not second.is_full("u")


async def test_front_ends_know_how_many_live() -> None:
    async with made_parent(3) as parent:
        a, b = (FrontEnd(parent.group(place)).member for place in (0, 1))
        assert a.limiters.num_replicas == 3, "as many as there should be"
        async with running(a.bus), running(b.bus):
            await exchange(a.limiters, b.limiters)
            assert [each.limiters.num_replicas for each in (a, b)] == [1, 2]
            await a.limiters.leave()
            await asyncio.sleep(0.5)
            await exchange(b.limiters)
            assert b.limiters.num_replicas == 1


async def test_without_an_answer_a_front_end_goes_on_alone() -> None:
    parent = LocalParent(2, CLOCK)
    try:
        alone = FrontEnd(parent.group(0)).member
        async with running(alone.bus):
            limiter = alone.limiters.rate("requests", 1.0, 10.0)
            limiter.charge("u", CLOCK.now())
            begun = time.monotonic()
            await exchange(alone.limiters)
            assert time.monotonic() - begun < 10
            assert not alone.limiters.replicas.is_shared
            taken = 1
            while not limiter.delay_s("u", CLOCK.now()):
                limiter.charge("u", CLOCK.now())
                taken += 1
            assert taken == 5, "its part of the burst"
    finally:
        parent.close()


async def test_more_reports_than_a_message_holds_are_settled() -> None:
    async with made_parent(1) as parent:
        bus = parent.group(0).bus()
        board = LocalBoard(bus, parent.group(0).parent)
        settled: list[tuple[float, float] | None] = []
        reports = [
            DemandReport("requests", f"{number:0200}", (9.0, 20.0, 40, 240.0, 1.0, 0, 1.0, 1.0), settled.append)
            for number in range(1000)
        ]
        async with running(bus):
            await board.report(Replica("a", "p", 0.0), reports)
    assert settled == [(1.0, 39.0)] * 1000


async def test_tokens_of_the_day_are_counted_over_front_ends_and_outlive_them() -> None:
    async with made_parent(2) as parent:
        a, b = (FrontEnd(parent.group(place)).member for place in (0, 1))

        async def learned(expected: float, own: float) -> None:
            """Wait until the second front end knows what others have of a key."""

            def is_known() -> bool:
                a.totals.exchange()
                b.totals.exchange()
                return b.totals.of_others("user:u", 20_000, own) == expected

            await eventually(is_known)

        async with running(a.bus), running(b.bus):
            assert a.totals.of_others("user:u", 20_000, 70.0) == 0.0
            a.totals.of_others("tenant:u", 20_000, 3.0)
            await learned(70.0, own=5.0)
            a.totals.of_others("user:u", 20_000, 90.0)
            await learned(90.0, own=6.0)
            parent.clear(0)
            a.totals.of_others("user:u", 20_000, 4.0)  # as the next one in its place would
            await learned(94.0, own=7.0)
            assert b.totals.of_others("user:u", 20_001, 0.0) == 0.0, "another day"
            many = {f"user:{number}": float(number) for number in range(2000)}
            for key, own in many.items():
                a.totals.of_others(key, 20_001, own)
            a.totals.exchange()
            for key in many:
                b.totals.of_others(key, 20_001, 0.0)
            await asyncio.sleep(0.05)
            b.totals.exchange()
            await eventually(lambda: {key: b.totals.of_others(key, 20_001, 0.0) for key in many} == many)
