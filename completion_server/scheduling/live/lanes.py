"""Lanes: the live request of each user or session, and the newest sequence numbers. Pure."""

from collections import OrderedDict
from collections.abc import Hashable

from completion_server.core.request import Trigger
from completion_server.scheduling.live.records import LiveRequest, State
from completion_server.scheduling.queue import QueueEntry

_REMEMBERED_S = 5.0
"""Longer than a network may delay a message, and shorter than the restart of an editor."""


_CANDIDATE_ORDER = (State.RUNNING, State.JOINED, State.QUEUED)
"""A joined request has a generation, unless the other request still waits."""


class Lanes:
    """The live request of each lane. Prefetches have a lane beside that of typed requests."""

    def __init__(self) -> None:
        """Begin with none."""
        self._holders: dict[tuple[str, bool], LiveRequest] = {}
        self._sequences = Sequences()

    def __len__(self) -> int:
        """Return how many requests are live."""
        return len(self._holders)

    def holder(self, lane: tuple[str, bool]) -> LiveRequest | None:
        """Return the live request of a lane."""
        return self._holders.get(lane)

    def entries(self) -> list[QueueEntry]:
        """Return all live requests."""
        return [record.entry for record in self._holders.values()]

    def enter(self, record: LiveRequest) -> None:
        """Make a request the live one of its lane."""
        self._holders[record.lane] = record

    def leave(self, record: LiveRequest) -> None:
        """Remove a request that is not live any more."""
        del self._holders[record.lane]

    def on(self, lane: str) -> list[LiveRequest]:
        """Return the live requests of a lane and of the lane for prefetches beside it."""
        return [self._holders[key] for key in ((lane, False), (lane, True)) if key in self._holders]

    def candidates(self, entry: QueueEntry) -> list[LiveRequest]:
        """Return the live requests to whose generation a newcomer may reattach, running ones first.

        A waiting one has no generation; if it serves the newcomer, the newcomer supersedes it. A prefetch never takes a
        generation from a typed request.
        """
        found = self.on(entry.lane)
        if entry.trigger is Trigger.PREFETCH:
            found = [each for each in found if each.entry.trigger is Trigger.PREFETCH]
        return sorted(found, key=lambda each: _CANDIDATE_ORDER.index(each.state))

    def is_overtaken(self, record: LiveRequest, now: float) -> bool:
        """Return whether a request came too late to supersede the lane's holder; note its sequence if it did not."""
        entry, holder, is_overtaken = record.entry, self.holder(record.lane), False
        if holder is not None and holder.entry.session == entry.session:
            is_overtaken = holder.entry.sequence >= entry.sequence
        elif holder is not None:  # its own session may have asked anew since
            is_overtaken = self._sequences.is_overtaken((record.lane, entry.session), entry.sequence, now)
        if not is_overtaken:
            self._sequences.note((record.lane, entry.session), entry.sequence, now)
        return is_overtaken


class Sequences:
    """The newest sequence of each session that had a request in the last seconds.

    With it, a request that arrives after a newer one is known to be stale, even if the newer one has ended.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._newest: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many sessions are remembered."""
        return len(self._newest)

    def note(self, session: Hashable, sequence: int, now: float) -> None:
        """Note the sequence number of a request of a session."""
        self._forget(now)
        known = self._newest.pop(session, (sequence, now))[0]
        self._newest[session] = max(known, sequence), now

    def is_overtaken(self, session: Hashable, sequence: int, now: float) -> bool:
        """Return whether a newer request of the session came in the last seconds."""
        self._forget(now)
        return self._newest.get(session, (sequence, now))[0] > sequence

    def _forget(self, now: float) -> None:
        """Forget old entries. They are sorted by time, so this costs little for each request."""
        while self._newest:
            session, (_sequence, noted_at) = next(iter(self._newest.items()))
            if now - noted_at < _REMEMBERED_S:
                return
            del self._newest[session]
