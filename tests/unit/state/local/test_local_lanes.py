"""Newest wins between front ends on real sockets and real shared memory."""

import asyncio

import pytest

from completion_server.state.local.bus import Kind
from completion_server.state.local.table import LaneTable, num_words
from tests.support.server import eventually
from tests.unit.state.local.front_ends import FrontEnd, front_ends, made_parent, running


async def test_a_newer_request_ends_the_older_one_on_another_front_end() -> None:
    async with front_ends(3) as (a, b, c):
        older = a.accept("lane", "first editor", 7)
        bystander = c.accept("another lane", "x", 1)
        newer = b.accept("lane", "second editor", 1)
        await eventually(lambda: a.superseded == [older])
        assert b.live == {"lane": newer}
        assert c.live == {"another lane": bystander}
        assert c.lanes.stats.num_received == 0


async def test_a_user_who_stays_costs_no_message() -> None:
    async with front_ends(2) as (a, _b):
        for number in range(100):
            a.accept("lane", "first", number)
        assert a.lanes.stats.num_sent == 0


async def test_a_request_that_is_announced_late_is_told_so() -> None:
    async with front_ends(2) as (a, b):
        older = a.accept("lane", "first", 1, announced=False)
        newer = b.accept("lane", "second", 1)
        a.lanes.accepted(older)
        await eventually(lambda: a.superseded == [older])
        assert b.live == {"lane": newer}


async def test_a_session_is_ordered_by_its_sequence() -> None:
    async with front_ends(2) as (a, b):
        newer = a.accept("lane", "session", 6)
        late = b.accept("lane", "session", 5)
        await eventually(lambda: b.superseded == [late])
        assert a.live == {"lane": newer}
        repeated = b.accept("lane", "session", 6)
        await eventually(lambda: a.superseded == [newer])
        assert b.live == {"lane": repeated}, "a client without sequences gives the same one each time"


async def test_requests_of_three_front_ends_at_once_leave_one() -> None:
    async with front_ends(3) as found:
        for number in range(50):
            for each in found:
                each.accept("lane", f"session {each.group.place}", number)
        await eventually(lambda: sum(len(each.live) for each in found) == 1)
        assert found[2].live


async def test_a_lost_message_is_made_up_for() -> None:
    async with made_parent(2) as parent:
        a, b = FrontEnd(parent.group(0)), FrontEnd(parent.group(1))
        older = a.accept("lane", "first", 1)
        newer = b.accept("lane", "second", 1)
        assert b.member.bus.stats.num_lost == 1, "neither is open"
        async with running(a.member.bus), running(b.member.bus):
            a.lanes.announce_old()
            await eventually(lambda: a.superseded == [older])
            assert b.live == {"lane": newer}


async def test_old_requests_are_announced_again_by_themselves() -> None:
    async with made_parent(2) as parent:
        a, b = FrontEnd(parent.group(0)), FrontEnd(parent.group(1))
        older = a.accept("lane", "first", 1)
        b.accept("lane", "second", 1)
        async with running(a.member.bus), running(b.member.bus):
            task = asyncio.create_task(a.lanes.run())
            await eventually(lambda: a.superseded == [older])
            task.cancel()


async def test_a_front_end_begins_without_the_lanes_of_the_one_before() -> None:
    async with made_parent(2) as parent:
        a = FrontEnd(parent.group(0))
        FrontEnd(parent.group(1)).accept("lane", "first", 1)
        FrontEnd(parent.group(1))
        a.accept("lane", "second", 1)
        assert a.member.bus.stats.num_lost == 0, "nobody was to be told"
        FrontEnd(parent.group(1)).accept("lane", "first", 1)
        parent.clear(1)
        a.accept("lane", "second", 2)
        assert a.member.bus.stats.num_lost == 0


async def test_another_lane_of_the_same_row_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("completion_server.state.local.table.crc32", lambda _lane: 7)
    async with front_ends(2) as (a, b):
        request = a.accept("lane", "first", 1)
        b.accept("another lane", "second", 1)
        await eventually(lambda: a.lanes.stats.num_received == 1)
        assert a.live == {"lane": request}


@pytest.mark.parametrize("payload", [b"", bytes(18) + b"\xff", bytes(16) + b"\x05\x00abc"])
async def test_a_message_that_is_not_understood_ends_nothing(payload: bytes) -> None:
    async with front_ends(2) as (a, b):
        request = a.accept("lane", "first", 1)
        b.member.bus.send(0, Kind.LANE, payload)
        await eventually(lambda: a.member.bus.stats.num_received == 1)
        assert a.live == {"lane": request}


def test_stamps_rise_over_all_places() -> None:
    memory = memoryview(bytearray(8 * num_words(4))).cast("q")
    tables = [LaneTable(memory, place, 4) for place in range(4)]
    stamps = [tables[place].stamp(at_least) for at_least in (10, 500, 20) for place in (2, 0, 3, 3, 1)]
    assert stamps == sorted(set(stamps))
    assert stamps[0] == 10
    assert [stamp % 4 for stamp in stamps[:5]] == [2, 0, 3, 3, 1]


def test_places_that_give_a_stamp_at_once_give_different_ones() -> None:
    memories = [memoryview(bytearray(8 * num_words(4))).cast("q") for _ in range(2)]
    first, second = (LaneTable(memory, place, 4).stamp(1000) for place, memory in enumerate(memories))
    assert first != second
