"""The newest sequence of each session that lately had a request, so that an older one that was overtaken on its way is
known for stale although the newer one has ended. Pure.
"""

from collections import OrderedDict
from collections.abc import Hashable

_REMEMBERED_S = 5.0
"""More than what a network may hold a message back for, and less than what an editor takes to start anew."""


class Sequences:
    """Remembers for a few seconds."""

    def __init__(self) -> None:
        """Begin with none."""
        self._newest: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many sessions are remembered."""
        return len(self._newest)

    def note(self, session: Hashable, sequence: int, now: float) -> None:
        """A request of a session came."""
        self._forget(now)
        known = self._newest.pop(session, (sequence, now))[0]
        self._newest[session] = max(known, sequence), now

    def is_overtaken(self, session: Hashable, sequence: int, now: float) -> bool:
        """Tell whether a newer request of the session came before, not long ago."""
        self._forget(now)
        return self._newest.get(session, (sequence, now))[0] > sequence

    def _forget(self, now: float) -> None:
        """Forget what is old; as the newest are last, that is little work for each request."""
        while self._newest:
            session, (_sequence, noted_at) = next(iter(self._newest.items()))
            if now - noted_at < _REMEMBERED_S:
                return
            del self._newest[session]
