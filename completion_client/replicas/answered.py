"""Which server answered which request of a session, so that feedback on the answer goes there. Pure."""

from collections import OrderedDict
from dataclasses import dataclass, field

from completion_client.endpoint import Endpoint

KEPT_S = 900.0
"""Servers take feedback on an answer for as long."""
_MAX_ANSWERS = 1024


@dataclass(slots=True)
class AnsweredRequests:
    """Remembers the servers of the newest answers with text, each for `KEPT_S`."""

    max_answers: int = _MAX_ANSWERS
    _answers: OrderedDict[int, tuple[Endpoint, float]] = field(default_factory=OrderedDict)

    def add(self, sequence: int, endpoint: Endpoint, now_s: float) -> None:
        """Remember the server that answered a request, and forget what is too old or too much."""
        self._answers[sequence] = endpoint, now_s
        while len(self._answers) > self.max_answers or now_s - self._oldest_s() >= KEPT_S:
            self._answers.popitem(last=False)

    def endpoint(self, sequence: int, now_s: float) -> Endpoint | None:
        """Return the server that answered a request; None if that is not known any more."""
        endpoint, answered_at_s = self._answers.get(sequence, (None, now_s))
        return endpoint if now_s - answered_at_s < KEPT_S else None

    def _oldest_s(self) -> float:
        return next(iter(self._answers.values()))[1]
