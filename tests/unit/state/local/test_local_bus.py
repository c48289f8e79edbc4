"""The bus between front ends, on real sockets."""

import logging
import socket
from pathlib import Path

import pytest

from completion_server.state.local.bus import Kind, LocalBus
from tests.support.server import eventually
from tests.unit.state.local.front_ends import running


def heard_by(bus: LocalBus, kind: Kind = Kind.LANE) -> list[tuple[int, bytes]]:
    """Return a list that the messages to a place are added to."""
    heard: list[tuple[int, bytes]] = []
    bus.on(kind, lambda *message: heard.append(message))
    return heard


async def test_messages_come_in_order_from_each_place(tmp_path: Path) -> None:
    buses = [LocalBus(str(tmp_path), place) for place in range(3)]
    heard = heard_by(buses[2])
    async with running(buses[0]), running(buses[1]), running(buses[2]):
        assert buses[0].send(2, Kind.LANE, b"first")
        assert buses[1].send(2, Kind.LANE, b"")
        assert buses[0].send(2, Kind.LANE, b"second")
        await eventually(lambda: len(heard) == 3)
    assert heard == [(0, b"first"), (1, b""), (0, b"second")]
    assert buses[2].stats.num_received == 3


async def test_a_ring_comes_to_its_place_alone(tmp_path: Path) -> None:
    buses, rings = [LocalBus(str(tmp_path), place) for place in range(3)], [0, 0, 0]

    def count(place: int) -> None:
        rings[place] += 1

    for place, bus in enumerate(buses):
        bus.on_ring(lambda place=place: count(place))
    async with running(buses[0]), running(buses[1]), running(buses[2]):
        buses[0].ring(1)
        await eventually(lambda: rings == [0, 1, 0])


async def test_more_than_a_queue_holds_comes_all_the_same(tmp_path: Path) -> None:
    buses = [LocalBus(str(tmp_path), place) for place in range(2)]
    heard = heard_by(buses[1])
    async with running(buses[0]), running(buses[1]):
        texts = [b"%d" % number for number in range(1000)]
        assert all(buses[0].send(1, Kind.LANE, text) for text in texts)
        await eventually(lambda: len(heard) == 1000)
    assert [text for _sender, text in heard] == texts
    assert buses[0].stats.num_lost == 0


async def test_a_place_that_does_not_read_costs_no_more_than_a_bound(tmp_path: Path) -> None:
    bus = LocalBus(str(tmp_path), 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "1"))
        async with running(bus):
            sent = [bus.send(1, Kind.LANE, bytes(4000)) for _ in range(100)]
            assert sent[0]
            assert not sent[-1]
            assert bus.stats.num_lost == sent.count(False)
    assert sum(sent) < 90
    assert not bus.send(1, Kind.LANE, bytes(5000)), "longer than any message"


async def test_a_message_to_nobody_is_lost(tmp_path: Path) -> None:
    bus = LocalBus(str(tmp_path), 0)
    assert not bus.send(1, Kind.LANE), "it is not open itself"
    async with running(bus):
        assert not bus.send(1, Kind.LANE)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(tmp_path / "1"))
        assert not bus.send(1, Kind.LANE)
    assert bus.stats.num_lost == 3


async def test_messages_that_wait_for_a_place_are_lost_with_it(tmp_path: Path) -> None:
    bus = LocalBus(str(tmp_path), 0)
    async with running(bus):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(tmp_path / "1"))
            while bus.stats.num_lost + bus.stats.num_sent < 1000 and bus.send(1, Kind.LANE, bytes(1000)):
                pass
        await eventually(lambda: not bus.send(1, Kind.LANE))
        later = LocalBus(str(tmp_path), 1)
        heard = heard_by(later)
        async with running(later):
            assert bus.send(1, Kind.LANE, b"new")
            await eventually(lambda: heard == [(0, b"new")])


async def test_a_new_process_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    sender = LocalBus(str(tmp_path), 0)
    (tmp_path / "1").touch()
    async with running(sender):
        for text in (b"to the first", b"to the second"):
            bus = LocalBus(str(tmp_path), 1)
            heard = heard_by(bus)
            async with running(bus):
                assert sender.send(1, Kind.LANE, text)
                await eventually(lambda heard=heard, text=text: heard == [(0, text)])


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02\x00\x01\x00\x00", b"\x01\x00\x01\xff\x00", b"\x01\x00\x01"])
async def test_a_datagram_that_is_not_understood_is_counted(tmp_path: Path, data: bytes) -> None:
    bus = LocalBus(str(tmp_path), 0)
    async with running(bus):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.sendto(data, str(tmp_path / "0"))
        await eventually(lambda: bus.stats.num_refused == 1)
    assert bus.stats.num_received == 0


async def test_a_kind_that_nobody_takes_is_ignored(tmp_path: Path) -> None:
    buses = [LocalBus(str(tmp_path), place) for place in range(2)]
    heard = heard_by(buses[1])
    async with running(buses[0]), running(buses[1]):
        buses[0].ring(1)
        buses[0].send(1, Kind.LANE, b"after it")
        await eventually(lambda: heard == [(0, b"after it")])


async def test_a_payload_that_is_not_understood_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    buses = [LocalBus(str(tmp_path), place) for place in range(2)]

    def refuse(_sender: int, payload: bytes) -> None:
        payload.decode("ascii")

    buses[1].on(Kind.LANE, refuse)
    async with running(buses[0]), running(buses[1]):
        buses[0].send(1, Kind.LANE, b"\xff")
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: buses[1].stats.num_refused == 1)
    assert "from place 0" in caplog.text
