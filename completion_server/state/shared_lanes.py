"""Newest wins across replicas: each replica tells the others of the requests that it accepts.

A replica decides about its own requests at once, as if it were alone. It publishes the lane and the stamp of each on
one channel of Redis, and ends its own requests that are older than a published one of their lane. A stamp is a time on
the clock of the replica's host. So two requests that come to two replicas within the offset of their clocks, at most
100 ms (`CompletionClockWrong`), may be ordered either way.

No message is needed for the outcome, only for its speed: live requests are published again and again. So late, lost,
duplicate and reordered messages do no harm. Without Redis each replica goes on alone.
"""

import asyncio
import logging
import secrets
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from completion_server.core.clock import Clock
from completion_server.state.secret import Secret
from completion_server.state.store import Store

logger = logging.getLogger(__name__)

KEPT_S = 60.0
"""Seconds for which a replica remembers that another replica served a lane."""
_REPEAT_S = 0.5
_BATCH_S = 0.01
"""For this time announcements wait for others. A message costs each replica more than what is in it."""
_SENDER_BYTES = 8
_ENTRY = struct.Struct("!16sQ")
"""The name of a lane and a stamp. A message is the token of its sender and such entries."""
_MAX_KNOWN = 100_000


@dataclass(slots=True)
class _Lane:
    """A lane that this replica serves."""

    lane: str
    alone_since: float
    """Clock seconds of the first request here, or of the last message of another replica about the lane."""


class SharedLanes:
    """Keeps one live request for each lane over all replicas."""

    def __init__(
        self,
        store: Store,
        secret: Secret,
        clock: Clock,
        *,
        key_prefix: str,
        supersede: Callable[[str, int], None],
        live: Callable[[], Iterable[tuple[str, int]]],
    ) -> None:
        """Publish to `store`.

        `supersede(lane, stamp)` ends this replica's requests of a lane that are older than the stamp. `live()` returns
        the lanes and stamps of its live requests.
        """
        self.channel = f"{key_prefix}:lanes"
        """The channel on which all replicas publish and listen."""
        self._store = store
        self._secret = secret
        self._clock = clock
        self._supersede = supersede
        self._live = live
        self._sender = secrets.token_bytes(_SENDER_BYTES)
        self._lanes: OrderedDict[bytes, _Lane] = OrderedDict()
        """By name in messages. The least recently used ones are forgotten."""
        self._unsent: dict[bytes, int] = {}
        self.num_sent = 0
        """Messages to the other replicas."""
        self.num_received = 0
        """Messages from other replicas."""

    def announce(self, lane: str, stamp: int) -> None:
        """Tell the other replicas of a live request. Returns at once."""
        name = self._name(lane)
        if name not in self._lanes:
            self._lanes[name] = _Lane(lane, self._clock.now())
            if len(self._lanes) > _MAX_KNOWN:
                self._lanes.popitem(last=False)
        self._lanes.move_to_end(name)
        if not self._unsent:
            asyncio.get_running_loop().call_later(_BATCH_S, self._send)
        self._unsent[name] = stamp

    def may_be_elsewhere(self, lane: str) -> bool:
        """Return whether another replica may have served a lane in the last minute."""
        known = self._lanes.get(self._name(lane))
        return known is None or self._clock.now() < known.alone_since + KEPT_S

    def receive(self, message: bytes) -> None:
        """Take a message; this replica's own ones come back."""
        if message.startswith(self._sender):
            return
        entries = message[_SENDER_BYTES:]
        if not entries or len(entries) % _ENTRY.size:
            logger.warning("a message of %d bytes from another replica is not understood", len(message))
            return
        self.num_received += 1
        for name, stamp in _ENTRY.iter_unpack(entries):
            known = self._lanes.get(name)
            if known is not None:
                known.alone_since = self._clock.now()
                self._supersede(known.lane, stamp)

    async def run(self) -> None:
        """Announce live requests again and again until cancelled: messages may have been lost."""
        while True:
            await asyncio.sleep(_REPEAT_S)
            for lane, stamp in self._live():
                self.announce(lane, stamp)

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, {}
        if self._store.is_available:
            self.num_sent += 1
            entries = b"".join(_ENTRY.pack(*each) for each in unsent.items())
            self._store.call_nowait("SPUBLISH", self.channel, self._sender + entries)

    def _name(self, lane: str) -> bytes:
        return bytes.fromhex(self._secret.name("lane", lane))
