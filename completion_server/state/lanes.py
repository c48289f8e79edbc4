"""Newest wins across replicas: a replica that accepts a request tells the replica that served its lane before.

The replica decides about its own requests at once, as if it were alone. Beside that it announces them to Redis, where
one script compares a request with the newest one of its lane and keeps the newer. The reply names the replica whose
request was kept before; that one gets a message on its own channel. Two replicas serve one lane only while users move
(a rollout, a reconnect, a second editor), so hardly any message is sent, and a replica that had the newest request of a
lane within the last second need not announce the next one: a message reaches it if another replica takes the lane. If
that replica's request is the older one, the replica announces its own.

No message is needed for the outcome, only for its speed: a replica announces requests that live longer than
`_REPEAT_S` again, and the script tells it if a newer one has come. So late, lost, duplicate and reordered messages do
no harm. Without Redis each replica goes on alone.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from completion_server.core.clock import Clock
from completion_server.state.redis_clock import RedisClock, is_shared
from completion_server.state.secret import Secret
from completion_server.state.store import Store

logger = logging.getLogger(__name__)

_REPEAT_S = 0.25
_PATIENCE_S = 0.01
"""Longest time for which an announcement waits to share a batch. The older request on another replica computes a
little longer; a batch for each request would cost this replica more."""
_DIGITS = 20
"""Sequences are compared as text of one length, because Lua's numbers are exact only up to 2^53. Stamps are smaller."""

_ANNOUNCE = b"""
local held = redis.call('HMGET', KEYS[1], 'stamp', 'replica', 'session', 'sequence')
local stamp, replica, session, sequence = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local before = ''
if held[1] then
  local held_stamp = tonumber(held[1])
  local is_late = math.abs(stamp - held_stamp) < ARGV[6] * 1000000
  if held[2] == replica then
    stamp = math.max(stamp, held_stamp)
  elseif held[3] == session and held[4] ~= sequence and is_late then
    if sequence < held[4] then return {0, held_stamp, ''} end
    stamp = math.max(stamp, held_stamp + 1)
  elseif stamp <= held_stamp then
    return {0, held_stamp, ''}
  end
  if held[2] ~= replica then before = held[2] end
end
redis.call('HSET', KEYS[1], 'stamp', string.format('%.0f', stamp), 'replica', replica, 'session', session,
  'sequence', sequence)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {1, stamp, before}
"""
"""Keeps the newer of two requests of a lane. Requests of one session are compared by their sequence, others by stamp.
Requests of one replica are not compared: that replica has compared them itself.

Returns whether the announced request is the newest, the stamp of the newest one, and the replica whose request it took
the place of. A request that is announced again changes nothing.
"""

HELD_S = 1.0
"""Seconds after a confirmed announcement in which further requests of the lane need none. If another replica takes the
lane meanwhile, it sends a message."""
KEPT_S = 60.0
"""Seconds for which Redis keeps the newest request of a lane after its last announcement, and for which a replica
remembers that another replica served the lane."""
LATE_S = 5.0
"""Longest network delay of a request, in seconds. A lower sequence that arrives later is a restarted editor's."""
_MAX_KNOWN = 100_000
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Announcement:
    """A request that a replica has accepted."""

    lane: str
    session: str
    sequence: int
    stamp: int

    def is_newer_than(self, other: "Announcement") -> bool:
        """Return whether this is the newer one of two requests of a lane, as the script in Redis decides."""
        is_late = abs(self.stamp - other.stamp) < LATE_S * _US
        if self.session == other.session and self.sequence != other.sequence and is_late:
            return self.sequence > other.sequence
        return self.stamp >= other.stamp


@dataclass(slots=True)
class KnownLane:
    """One lane. Until Redis answers, the replica assumes that another replica may have served it."""

    newest: Announcement
    """This replica's own newest request."""
    confirmed_at: float = float("-inf")
    """Time at which the last confirmed announcement was sent; minus infinity after another replica took the lane."""
    moved_at: float = float("-inf")
    """Time of the last evidence that another replica served the lane."""

    def is_held(self, now: float) -> bool:
        """Return whether the next request needs no announcement."""
        return now < self.confirmed_at + HELD_S

    def may_be_elsewhere(self, now: float) -> bool:
        """Return whether another replica may have served the lane in the last `KEPT_S`."""
        return now >= self.confirmed_at + KEPT_S or now < self.moved_at + KEPT_S

    def confirm(self, sent_at: float, *, was_elsewhere: bool) -> None:
        """Note that Redis confirmed an announcement; `was_elsewhere` if another replica had the previous one."""
        self.confirmed_at = sent_at
        if was_elsewhere:
            self.moved_at = sent_at

    def lose(self, now: float) -> None:
        """Note that another replica serves the lane."""
        self.confirmed_at, self.moved_at = float("-inf"), now


class KnownLanes:
    """The lanes of recent requests, by their names in Redis. The least recently used ones are forgotten."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lanes: OrderedDict[str, KnownLane] = OrderedDict()

    def get(self, name: str) -> KnownLane | None:
        """Return a lane, None if it is not known."""
        return self._lanes.get(name)

    def accept(self, name: str, request: Announcement) -> KnownLane:
        """Note the newest request of a lane, and return the lane."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = KnownLane(request)
            if len(self._lanes) > _MAX_KNOWN:
                self._lanes.popitem(last=False)
        else:
            lane.newest = request
            self._lanes.move_to_end(name)
        return lane


@dataclass(slots=True)
class LaneStats:
    """Counters of the announcements of one replica."""

    num_announced: int = 0
    num_overtaken: int = 0
    """Number of requests whose announcement came after that of a newer request of their lane."""
    num_sent: int = 0
    """Messages to other replicas."""
    num_received: int = 0
    """Messages from other replicas."""


class SharedLanes:
    """Keeps one live request for each lane over all replicas."""

    def __init__(
        self,
        store: Store,
        secret: Secret,
        clock: Clock,
        *,
        key_prefix: str,
        replica_id: str,
        supersede: Callable[[str, int], None],
        live: Callable[[], Iterable[tuple[Announcement, float]]],
    ) -> None:
        """Announce to `store` as `replica_id`.

        `supersede(lane, stamp)` ends this replica's requests of a lane that are older than the stamp. `live()` returns
        its live requests, each with the clock seconds at which it arrived.
        """
        self._store = store
        self._secret = secret
        self._clock = clock
        self._prefix = key_prefix
        self._replica_id = replica_id
        self._supersede = supersede
        self._live = live
        self.clock = RedisClock(store, clock, f"{key_prefix}:clock")
        self._known = KnownLanes()
        self.stats = LaneStats()

    @property
    def channel(self) -> str:
        """The channel on which this replica gets messages."""
        return self._channel_of(self._replica_id)

    def accepted(self, request: Announcement) -> None:
        """Take notice of an accepted request, and tell the other replicas if they need to know. Returns at once."""
        name = self._secret.name("lane", request.lane)
        if not self._known.accept(name, request).is_held(self._clock.now()):
            self._announce(name, request)

    def is_held(self, lane: str) -> bool:
        """Return whether the next request of a lane needs no announcement."""
        known = self._known.get(self._secret.name("lane", lane))
        return known is not None and known.is_held(self._clock.now())

    def may_be_elsewhere(self, lane: str) -> bool:
        """Return whether another replica may have served a lane in the last minute."""
        known = self._known.get(self._secret.name("lane", lane))
        return known is None or known.may_be_elsewhere(self._clock.now())

    def announce_live(self) -> None:
        """Announce all live requests again: announcements or messages may have been lost."""
        for request, _arrived_at in self._live():
            self._announce(self._secret.name("lane", request.lane), request)

    def announce_old(self) -> None:
        """Repeat the announcements of live requests older than `_REPEAT_S`; in a held lane only once per `HELD_S`."""
        now = self._clock.now()
        for request, arrived_at in self._live():
            if arrived_at <= now - _REPEAT_S and not self.is_held(request.lane):
                self._announce(self._secret.name("lane", request.lane), request)

    def redis_is_back(self) -> None:
        """Measure Redis's clock and announce all live requests: Redis was away, or this replica has just started."""
        self.clock.measure_anew(self.announce_live)

    def receive(self, data: bytes) -> None:
        """Take a message of another replica: it has a request of a lane that this replica served before."""
        try:
            name, theirs = _parse(data)
        except ValueError:
            logger.warning("a message of %d bytes from another replica is not understood", len(data))
            return
        self.stats.num_received += 1
        self.clock.advance(theirs.stamp)
        known = self._known.get(name)
        if known is None:
            return
        known.lose(self._clock.now())
        own = known.newest
        if replace(own, session=self._secret.name("session", own.session)).is_newer_than(theirs):
            self._announce(name, own)
        else:
            self._supersede(own.lane, max(theirs.stamp, own.stamp + 1))

    async def run(self) -> None:
        """Repeat the announcements of long-lived requests and keep stamps in step, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.clock.run())
            while True:
                await asyncio.sleep(_REPEAT_S)
                self.announce_old()

    def _announce(self, name: str, request: Announcement) -> None:
        """Announce a request to Redis. Repeating an announcement changes nothing."""
        if not self._store.is_available or not is_shared(request.stamp):
            return
        self.stats.num_announced += 1
        session = self._secret.name("session", request.session)
        reply = self._store.call_nowait(
            "EVAL", _ANNOUNCE, 1, f"{self._prefix}:lane:{name}", request.stamp, self._replica_id, session,
            f"{request.sequence:0{_DIGITS}d}", round(KEPT_S * 1000), LATE_S,
            patience_s=_PATIENCE_S,
        )  # fmt: skip
        reply.add_done_callback(partial(self._announced, name, session, request, self._clock.now()))

    def _announced(
        self, name: str, session: str, request: Announcement, sent_at: float, reply: "asyncio.Future[Any]"
    ) -> None:
        """Take the answer of the script."""
        if reply.cancelled() or reply.exception() is not None:
            return  # `announce_live` follows when Redis is back
        is_newest, stamp, before = reply.result()
        self.clock.advance(stamp)
        known = self._known.get(name)
        if known is not None and is_newest:
            known.confirm(sent_at, was_elsewhere=bool(before))
        elif known is not None:
            known.lose(sent_at)
        if not is_newest:
            self.stats.num_overtaken += 1
            # Uses this request's stamp, not the newest one: a request that arrived meanwhile is compared separately.
            self._supersede(request.lane, request.stamp + 1)
        elif before:
            self.stats.num_sent += 1
            message = f"{name} {session} {request.sequence} {stamp}"
            self._store.call_nowait("SPUBLISH", self._channel_of(before.decode()), message)

    def _channel_of(self, replica_id: str) -> str:
        return f"{self._prefix}:replica:{replica_id}"


def _parse(data: bytes) -> tuple[str, Announcement]:
    """Return the name of a message's lane and the request that it is about. Raises ValueError."""
    name, session, sequence, stamp = data.decode("ascii").split(" ")
    if not (sequence.isdecimal() and stamp.isdecimal()):
        msg = "the sequence and the stamp must be decimal numbers"
        raise ValueError(msg)
    return name, Announcement(name, session, int(sequence), int(stamp))
