"""A user typing real code: the document that an editor would send at each key.

A stretch is cut out of a real file and typed again, key by key: Enter brings the line's indentation along, an opening
bracket brings its closing one, which is typed over later, now and then a word is mistyped and deleted again, and now
and then the user goes to another line, types a comment there and comes back.
"""

import random
import string
from collections.abc import Iterator
from itertools import islice

from loadtest.bench.runner.prompts import CursorText

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MISTYPED_SHARE = 0.02
_AWAY_SHARE = 0.008
_NOTE = "  # see below"
_CHARACTERS_A_KEY = 4
"""Cut out for each key to be typed, so that the stretch does not run out before the keys do."""


def typed(text: str, num_keys: int, seed: int) -> list[CursorText]:
    """Return the document after each of at most `num_keys` keys typed somewhere into `text`."""
    chance = random.Random(seed)
    at = chance.randrange(len(text) // 10, max(len(text) // 10 + 1, len(text) * 8 // 10))
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", begin + num_keys * _CHARACTERS_A_KEY)
    end = len(text) if end < 0 else end
    typist = _Typist(text[:begin], text[end:], text[begin:end], chance)
    return list(islice(typist.keys(), num_keys))


class _Typist:
    """Types a text into a document."""

    def __init__(self, left: str, right: str, text: str, chance: random.Random) -> None:
        self._left = left
        self._right = right
        self._text = text
        self._chance = chance
        self._brought: list[str] = []
        """Closing brackets that the editor put right of the cursor."""

    def keys(self) -> Iterator[CursorText]:
        """Yield the document after each key."""
        at = 0
        while at < len(self._text):
            draw = self._chance.random()
            if draw < _AWAY_SHARE:
                yield from self._go_away()
            elif draw < _AWAY_SHARE + _MISTYPED_SHARE:
                yield from self._mistype()
            at += self._type(at)
            yield self._state()

    def _state(self) -> CursorText:
        return CursorText(self._left, self._right)

    def _type(self, at: int) -> int:
        """Press the key for the text at an offset; return how much of the text it brings."""
        key = self._text[at]
        if key == "\n":
            rest = self._text[at + 1 :]
            brought = len(rest) - len(rest.lstrip(" \t"))
            self._left += self._text[at : at + 1 + brought]
            return 1 + brought
        self._left += key
        if self._brought and key == self._brought[-1] and self._right.startswith(key):
            self._right = self._right[1:]
            self._brought.pop()
        elif key in _CLOSING and (not self._right or self._right[0].isspace() or self._right[0] in ")]}"):
            self._right = _CLOSING[key] + self._right
            self._brought.append(_CLOSING[key])
        return 1

    def _mistype(self) -> Iterator[CursorText]:
        before = self._left
        for _ in range(self._chance.randint(1, 3)):
            self._left += self._chance.choice(string.ascii_lowercase)
            yield self._state()
        while len(self._left) > len(before):
            self._left = self._left[:-1]
            yield self._state()

    def _go_away(self) -> Iterator[CursorText]:
        """Type a note at the end of another line and come back."""
        document, home = self._left + self._right, len(self._left)
        away = document.find("\n", self._chance.randrange(len(document)))
        if away < 0 or away == home:
            return
        for length in range(1, len(_NOTE) + 1):
            yield CursorText(document[:away] + _NOTE[:length], document[away:])
        document = document[:away] + _NOTE + document[away:]
        home += len(_NOTE) if away < home else 0
        self._left, self._right = document[:home], document[home:]
