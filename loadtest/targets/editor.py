"""The pure part of an editor: what it remembers, what its user takes, whether an answer fits.

Knows neither targets nor clocks.
"""

from collections import deque
from dataclasses import dataclass

from loadtest.traffic.trace import Text, TypedRequest


def common_chars(completion: str, request: TypedRequest) -> int:
    """Return how many characters a completion begins with that the user goes on to type."""
    before, end = request.text.before, request.end
    length = min(len(completion), len(before) - end)
    if before.startswith(completion[:length], end):
        return length
    return next(place for place in range(length) if completion[place] != before[end + place])


def accepted_chars(completion: str, request: TypedRequest, min_chars: int) -> int:
    """Return how much of a completion that was seen the user takes: what agrees with the truth, if it is worth a key.

    What is typed afterwards does not depend on it, so every target meets the same traffic.
    """
    found = common_chars(completion, request)
    return found if found >= min_chars else 0


def is_typed_along(text: str, request: TypedRequest) -> bool:
    """Tell whether the user types what an answer says, as far as both are known; of nothing it can't be said."""
    known = min(len(text), len(request.text.before) - request.end)
    return known > 0 and common_chars(text, request) == known


@dataclass(frozen=True, slots=True)
class _Remembered:
    text: Text
    end: int
    completion: str


class CompletionCache:
    """An editor's recent completions: who types along one is shown its rest, and nobody is asked."""

    __slots__ = ("_recent",)

    def __init__(self, entries: int) -> None:
        """Remember so many; 0 remembers none."""
        self._recent: deque[_Remembered] = deque(maxlen=entries)

    def add(self, request: TypedRequest, completion: str) -> None:
        """Remember a whole completion."""
        self._recent.append(_Remembered(request.text, request.end, completion))

    def find(self, request: TypedRequest) -> str:
        """Return what a remembered completion has for a request, the newest first; "" where none fits."""
        for each in reversed(self._recent):
            typed = request.end - each.end
            if each.text != request.text or not 0 <= typed < len(each.completion):
                continue
            rest = each.completion[typed:]
            if rest.strip() and request.text.before.startswith(each.completion[:typed], each.end):
                return rest
        return ""
