"""Validates feedback against recent answers. Pure.

Editors' reports go into dashboards and training data, so a report must belong to a recent answer and must not count
more accepted characters than that answer had.
"""

import struct
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from completion_server.core.errors import InvalidRequestError
from completion_server.core.events import Feedback, FeedbackReported
from completion_server.core.outcome import CacheLevel, Reaction, ServedAnswer

KEPT_S = 900.0
"""Editors send the last report about a text 360 s after the user accepted it."""
_MAX_ANSWERS = 262_144
_IN_PIECES = frozenset({"accepted_word", "accepted_line"})
_SURVIVING_SHARE = 2 / 3
"""Share of the accepted text that must be left: up to a third of it edited is "mostly unchanged" in Ziegler et al.,
Productivity Assessment of Neural Code Completion, 2022."""
_REACTIONS = tuple(Reaction)
_LEVELS = tuple(CacheLevel)
_ENTRY, _ENDED_AT = struct.Struct("<dIdBhB"), struct.Struct("<d")
"""An answer, and what it begins with. As objects, the answers would take most of a busy server's memory."""
_NO_K = -1


@dataclass(slots=True)
class _RecentAnswer:
    num_characters: int
    """Characters of its text not yet reported as accepted."""
    ended_at: float
    served: ServedAnswer
    num_reactions: int = 0
    """Of the reactions in their order, those that are known."""

    def packed(self) -> bytes:
        served, k = self.served, self.served.num_speculative_tokens
        level = _LEVELS.index(served.cache_level)
        return _ENTRY.pack(
            self.ended_at, self.num_characters, served.ttft_s, level, _NO_K if k is None else k, self.num_reactions
        )


def _unpacked(entry: bytes) -> _RecentAnswer:
    ended_at, num_characters, ttft_s, level, k, num_reactions = _ENTRY.unpack(entry)
    served = ServedAnswer(ttft_s, None if k == _NO_K else k, _LEVELS[level])
    return _RecentAnswer(num_characters, ended_at, served, num_reactions)


class RecentAnswers:
    """Remembers the length of each answer, and how it was served, for `KEPT_S`.

    Above a number of answers the oldest is forgotten first. Keys are kept as hashes of 64 bits: two answers that share
    one are so rare that a report on the wrong one changes no figure.
    """

    def __init__(self, max_answers: int = _MAX_ANSWERS) -> None:
        """Remember up to `max_answers`."""
        self._max_answers = max_answers
        self._answers: OrderedDict[int, bytes] = OrderedDict()
        self._reports: dict[int, frozenset[tuple[str, int]]] = {}
        """Of those answers that have any."""

    def __len__(self) -> int:
        """Return the number of remembered answers."""
        return len(self._answers)

    def add(self, key: Hashable, num_characters: int, now: float, served: ServedAnswer) -> None:
        """Remember an answer. Its length is in UTF-16 code units, the largest count that an editor may use."""
        self._forget(hash(key))
        self._answers[hash(key)] = _RecentAnswer(num_characters, now, served).packed()
        while True:
            oldest, entry = next(iter(self._answers.items()))
            if len(self._answers) <= self._max_answers and now - _ENDED_AT.unpack_from(entry)[0] < KEPT_S:
                return
            self._forget(oldest)

    def _forget(self, key: int) -> None:
        self._answers.pop(key, None)
        self._reports.pop(key, None)

    def accept(self, key: Hashable, feedback: Feedback, now: float) -> FeedbackReported | None:
        """Return the event of a report that counts; None for a repeated report.

        Raises:
            InvalidRequestError: the answer is not known, or the report counts more characters than the answer had.

        """
        entry = self._answers.get(hash(key))
        if entry is None or now - _ENDED_AT.unpack_from(entry)[0] >= KEPT_S:
            limit = f"must be that of an answer with text, not older than {KEPT_S:g} s"
            raise InvalidRequestError("sequence", limit)
        answer, reports = _unpacked(entry), self._reports.get(hash(key), frozenset())
        if feedback.accepted_characters > answer.num_characters:
            limit = f"must be at most {answer.num_characters}, which are left of the answer"
            raise InvalidRequestError("accepted_characters", f"{limit}, got {feedback.accepted_characters}")
        if feedback.kind in _IN_PIECES and not feedback.accepted_characters:
            raise InvalidRequestError("accepted_characters", "must be at least 1 for a word or a line, got 0")
        report = feedback.kind, feedback.survived_after_s if feedback.kind == "survived" else 0
        if report in reports:
            return None
        if feedback.kind not in _IN_PIECES:
            self._reports[hash(key)] = reports | {report}
        answer.num_characters -= feedback.accepted_characters
        num_known, num_reached = answer.num_reactions, _num_reactions(feedback)
        answer.num_reactions = max(num_known, num_reached)
        self._answers[hash(key)] = answer.packed()
        return FeedbackReported(feedback, answer.served, _REACTIONS[num_known:num_reached])


def _num_reactions(feedback: Feedback) -> int:
    """Return how many of the reactions, in their order, a report tells of. Each report says that the text was shown."""
    if feedback.kind == "survived" and feedback.survived_share >= _SURVIVING_SHARE:
        return 3
    return 2 if feedback.kind in {"accepted", "survived", *_IN_PIECES} else 1
