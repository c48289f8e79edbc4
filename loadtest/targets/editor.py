"""The pure part of an editor: its completion cache, and the comparison of completions with the text typed next.

Knows neither targets nor clocks.
"""

from collections import deque
from dataclasses import dataclass

from loadtest.traffic.trace import Text, TypedRequest


def common_chars(completion: str, request: TypedRequest) -> int:
    """Return how many of a completion's first characters the user types next."""
    before, end = request.text.before, request.end
    length = min(len(completion), len(before) - end)
    if before.startswith(completion[:length], end):
        return length
    return next(place for place in range(length) if completion[place] != before[end + place])


def accepted_chars(completion: str, request: TypedRequest, min_chars: int) -> int:
    """Return how many characters of a shown completion the user accepts: those typed next, if they are enough.

    The text typed afterwards does not depend on it, so every target gets the same traffic.
    """
    found = common_chars(completion, request)
    return found if found >= min_chars else 0


def is_typed_along(text: str, request: TypedRequest) -> bool:
    """Tell whether the user types the text of an answer, as far as both are known. False for no text."""
    known = min(len(text), len(request.text.before) - request.end)
    return known > 0 and common_chars(text, request) == known


@dataclass(frozen=True, slots=True)
class _Remembered:
    text: Text
    end: int
    completion: str


class EditorCache:
    """An editor's recent completions. A user who types the text of one sees the rest of it, without a request."""

    __slots__ = ("_recent",)

    def __init__(self, entries: int) -> None:
        """Remember up to `entries` completions."""
        self._recent: deque[_Remembered] = deque(maxlen=entries)

    def add(self, request: TypedRequest, completion: str) -> None:
        """Remember a whole completion."""
        self._recent.append(_Remembered(request.text, request.end, completion))

    def find(self, request: TypedRequest) -> str:
        """Return the rest of the newest remembered completion that fits a request; "" if none fits."""
        for each in reversed(self._recent):
            typed = request.end - each.end
            if each.text != request.text or not 0 <= typed < len(each.completion):
                continue
            rest = each.completion[typed:]
            if rest.strip() and request.text.before.startswith(each.completion[:typed], each.end):
                return rest
        return ""
