"""Lanes: the live request of each user or session, and the newest sequence numbers. Pure."""

from collections import OrderedDict
from collections.abc import Hashable

from completion_server.core.request import Trigger
from completion_server.requests.scheduling.requests import LiveRequest, State

_REMEMBERED_S = 5.0
"""Longer than a network may delay a message, and shorter than the restart of an editor."""


_CANDIDATE_ORDER = (State.RUNNING, State.JOINED, State.QUEUED)
"""A joined request reads a generation that runs, unless the other request still waits."""


class Lanes:
    """The live request of each lane. Prefetches have a lane beside that of typed requests."""

    def __init__(self) -> None:
        """Begin with none."""
        self._holders: dict[tuple[str, bool], LiveRequest] = {}
        self._sequences = Sequences()

    def holder(self, lane: tuple[str, bool]) -> LiveRequest | None:
        """Return the live request of a lane."""
        return self._holders.get(lane)

    def enter(self, request: LiveRequest) -> None:
        """Make a request the live one of its lane."""
        self._holders[request.lane_key] = request

    def leave(self, request: LiveRequest) -> None:
        """Remove a request that is not live any more."""
        del self._holders[request.lane_key]

    def on(self, lane: str) -> list[LiveRequest]:
        """Return the live requests of a lane and of the lane for prefetches beside it."""
        return [self._holders[key] for key in ((lane, False), (lane, True)) if key in self._holders]

    def serving(self, newcomer: LiveRequest) -> LiveRequest | None:
        """Return the live request to whose generation a newcomer may reattach, the first that runs if there are two.

        A waiting one has no generation; if it serves the newcomer, the newcomer supersedes it. A prefetch never takes a
        generation from a typed request.
        """
        if newcomer.continuation is None:
            return None
        is_prefetch = newcomer.trigger is Trigger.PREFETCH
        found = [
            each
            for each in self.on(newcomer.lane)
            if (each.trigger is Trigger.PREFETCH or not is_prefetch) and each.serves(newcomer)
        ]
        return min(found, key=lambda each: _CANDIDATE_ORDER.index(each.state), default=None)

    def is_overtaken(self, request: LiveRequest, now: float) -> bool:
        """Return whether a request came too late to supersede the lane's holder; note its sequence if it did not."""
        lane, session, holder = request.lane_key, request.session, self._holders.get(request.lane_key)
        is_overtaken = False
        if holder is not None and holder.session == session:
            is_overtaken = holder.sequence >= request.sequence
        elif holder is not None:  # its own session may have asked anew since
            is_overtaken = self._sequences.is_overtaken((lane, session), request.sequence, now)
        if not is_overtaken:
            self._sequences.note((lane, session), request.sequence, now)
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
