"""The board of shared limits in a server's parent process.

Front ends that get no answer go on alone, as replicas without Redis do.
"""

import asyncio
import itertools
import secrets
import struct
from collections.abc import Iterator, Sequence
from functools import partial

from completion_server.core.clock import Clock
from completion_server.limits.ledger import Ledger, Terms
from completion_server.limits.replicas import Replica
from completion_server.limits.shares import DemandReport
from completion_server.state.local.bus import MAX_PAYLOAD, Bus, Kind
from completion_server.state.local.packing import Reader, pack_text

PATIENCE_S = 0.25
"""How long an answer is waited for."""
KNOWN_S = 60.0
"""A silent front end is remembered for this time."""
_NUMBER = struct.Struct("<Q")
_TERMS = struct.Struct("<8d")
_SHARE = struct.Struct("<dd")
_AGE = struct.Struct("<d")


class LocalBoard:
    """The way of one front end to the board. Implements `Board`."""

    def __init__(self, bus: Bus, parent: int) -> None:
        """Report to a place."""
        self._bus = bus
        self._parent = parent
        # Not from 0: an answer to the process that had this place before must not be taken for one to this process.
        self._numbers = itertools.count(secrets.randbits(48))
        self._asked: dict[int, asyncio.Future[bytes | None]] = {}
        bus.on(Kind.ANSWER, self._answered)

    async def meet(self, replica: Replica, *, leaves: bool = False) -> Sequence[Replica] | None:
        """Send a heartbeat, or take it back; return those before it. None if there is no answer."""
        answer = await self._ask(Kind.MEET, pack_text(replica.id) + pack_text("" if leaves else replica.process))
        return None if answer is None else list(_read_replicas(answer))

    async def report(self, replica: Replica, reports: Sequence[DemandReport]) -> None:
        """Send reports and settle them."""
        asked = [(some, self._ask(Kind.REPORT, payload)) for some, payload in _in_messages(replica.id, reports)]
        for some, future in asked:
            answer = await future
            shares = [] if answer is None else list(_SHARE.iter_unpack(answer))
            for number, each in enumerate(some):
                each.settle(shares[number] if len(shares) == len(some) else None)

    def _ask(self, kind: Kind, payload: bytes) -> "asyncio.Future[bytes | None]":
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        future: asyncio.Future[bytes | None] = loop.create_future()
        self._asked[number] = future
        timer = loop.call_later(PATIENCE_S, self._end, number, None)
        future.add_done_callback(partial(self._close, number, timer))
        if not self._bus.send(self._parent, kind, _NUMBER.pack(number) + payload):
            self._end(number, None)
        return future

    def _close(self, number: int, timer: asyncio.TimerHandle, _future: object) -> None:
        timer.cancel()
        del self._asked[number]

    def _answered(self, _sender: int, payload: bytes) -> None:
        (number,) = _NUMBER.unpack_from(payload)
        self._end(number, payload[_NUMBER.size :])

    def _end(self, number: int, answer: bytes | None) -> None:
        future = self._asked.get(number)
        if future is not None and not future.done():
            future.set_result(answer)


class BoardKeeper:
    """The board itself, in the parent."""

    def __init__(self, bus: Bus, clock: Clock, ledger: Ledger | None = None) -> None:
        """Answer the messages of front ends."""
        self._bus = bus
        self._clock = clock
        self._ledger = ledger or Ledger()
        bus.on(Kind.MEET, self._meet)
        bus.on(Kind.REPORT, self._report)

    def forget(self, front_end: str) -> None:
        """Leave the shares and sessions of a dead front end to the others at once."""
        self._ledger.forget(front_end)

    def _meet(self, sender: int, payload: bytes) -> None:
        texts = Reader(payload, _NUMBER.size)
        me, process = texts.text(), texts.text()
        found = self._ledger.meet(me, process, KNOWN_S, self._clock.now())
        answer = b"".join(_AGE.pack(each.age_s) + pack_text(each.id) + pack_text(each.process) for each in found)
        self._bus.send(sender, Kind.ANSWER, payload[: _NUMBER.size] + answer)

    def _report(self, sender: int, payload: bytes) -> None:
        now, reader, answer = self._clock.now(), Reader(payload, _NUMBER.size), payload[: _NUMBER.size]
        me = reader.text()
        while not reader.is_at_end:
            key, terms = reader.text(), Terms(*reader.numbers(_TERMS))
            answer += _SHARE.pack(*self._ledger.share(key, me, terms, now))
        self._bus.send(sender, Kind.ANSWER, answer)


def _in_messages(me: str, reports: Sequence[DemandReport]) -> Iterator[tuple[list[DemandReport], bytes]]:
    """Yield the payloads of as few messages as reports fit in, each with its reports."""
    some: list[DemandReport] = []
    payload = head = pack_text(me)
    for each in reports:
        entry = pack_text(f"{each.kind}:{each.key}") + _TERMS.pack(*each.arguments)
        if some and _NUMBER.size + len(payload) + len(entry) > MAX_PAYLOAD:
            yield some, payload
            some, payload = [], head
        some.append(each)
        payload += entry
    if some:
        yield some, payload


def _read_replicas(answer: bytes) -> Iterator[Replica]:
    reader = Reader(answer, 0)
    while not reader.is_at_end:
        (age_s,) = reader.numbers(_AGE)
        yield Replica(reader.text(), reader.text(), age_s)
