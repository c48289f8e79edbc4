"""Detects runs: text that repeats itself, as in "range(0, 1, 1, 1, 1, 1". Small models often end in them.

A run is a unit of text that stands there several times in a row. People write runs, too, such as a table of zeros, but
theirs end. So a run is cut if the token limit ended the text in it, or if it is a loop, which is too long for a person.

A run has at least three units and 16 characters, so that "0, 0, 0, 0" and "(255, 255, 255)" are no runs, a loop has at
least four units and 240 characters. Blanks make no run, and rulers such as "-----" only from 100 characters on. A unit
has at most 120 characters.

Every character is checked by itself, so the result does not depend on the pieces in which the text arrives.
"""

from collections.abc import Callable

_NUM_UNITS = 3
_MIN_RUN = 16
_MIN_RULER = 100
_NUM_UNITS_OF_LOOP = 4
_MIN_LOOP = 240
_MAX_UNIT = 120
_MAX_RUN = max(_NUM_UNITS_OF_LOOP * _MAX_UNIT, _MIN_LOOP)
"""Longest loop in characters when it is found: every character is checked, so it is found before it grows further."""
_RULER = frozenset("-=_*#~.+/\\ ")


def _required(unit: str) -> int:
    """Return the smallest length of a run of this unit, in characters; 0 if this unit makes no run."""
    if unit.isspace():
        return 0
    return max(_NUM_UNITS * len(unit), _MIN_RULER if _RULER.issuperset(unit) else _MIN_RUN)


def _required_of_loop(unit: str) -> int:
    """Return the smallest length of a loop of this unit, in characters; 0 if this unit makes no loop."""
    return 0 if unit.isspace() else max(_NUM_UNITS_OF_LOOP * len(unit), _MIN_LOOP)


_MIN_REPEATED = min(_required("x" * unit) - unit for unit in range(1, _MAX_UNIT + 1))
"""Smallest number of repeated characters in a run: the characters after its first unit."""
_MIN_REPEATED_IN_LOOP = min(_required_of_loop("x" * unit) - unit for unit in range(1, _MAX_UNIT + 1))


class RunDetector:
    """Reads a completion until a loop is found."""

    def __init__(self) -> None:
        """Begin without text."""
        self.text = ""
        """The text that was read."""
        self.end: int | None = None
        """Length of the text to keep if it is to be cut, up to the end of the first unit of the run; else None."""
        self._num_certain = 0
        self._next_check = _MIN_REPEATED_IN_LOOP
        """Length of the shortest text that may end with a loop."""

    def feed(self, text: str) -> str:
        """Read more text until a loop is found; return the part of it that was read."""
        begin = len(self.text)
        whole = self.text = self.text + text
        while (length := self._next_check) <= len(whole):
            unit = _unit_of_run(whole, length, _MIN_REPEATED_IN_LOOP, _required_of_loop)
            if unit:
                self.text = whole[:length]
                self.end = _end_of_first_unit(self.text, unit)
                return text[: length - begin]
            # Each character adds at most one repeated character, so the next check waits for those that are missing.
            num_repeated = _num_repeated(whole, length, _MIN_REPEATED_IN_LOOP)
            self._next_check += max(1, _MIN_REPEATED_IN_LOOP - num_repeated)
        return text

    def finish(self) -> None:
        """Look for a run at the end of the text, because the token limit ended it."""
        length = len(self.text)
        unit = _unit_of_run(self.text, length, _MIN_REPEATED, _required) if length > _MIN_REPEATED else 0
        if unit:
            self.end = _end_of_first_unit(self.text, unit)

    @property
    def num_certain(self) -> int:
        """Number of characters that no later run can remove: the others repeat the text right before them."""
        length = len(self.text)
        self._num_certain = length - _num_repeated(self.text, length, length - self._num_certain)
        return self._num_certain


def _unit_of_run(text: str, length: int, min_repeated: int, required: Callable[[str], int]) -> int:
    """Return the length of the unit of a run that `text[:length]` ends with, 0 if it does not end with a run.

    `required` returns the smallest length of a run of a unit, whose last `min_repeated` characters repeat at least.
    """
    tail = text[length - min_repeated : length]
    lowest = max(0, length - min_repeated - _MAX_UNIT)
    at = text.rfind(tail, lowest, length - 1)
    while at >= 0:
        unit = length - min_repeated - at
        run = required(text[length - unit : length])
        if run and run <= length and text[length - run : length - unit] == text[length - run + unit : length]:
            return unit
        at = text.rfind(tail, lowest, at + min_repeated - 1)
    return 0


def _end_of_first_unit(text: str, unit: int) -> int:
    """Return the index at which the first unit of the run at the end of `text` ends.

    An index within a line or a word moves to the end of that line or word.
    """
    start = len(text) - unit
    while start > 0 and text[start - 1] == text[start - 1 + unit]:
        start -= 1
    end = start + unit
    if "\n" in text[start:end]:
        return text.find("\n", end - 1) + 1
    if not text[start:end].isalnum():  # A unit may begin within a word, if the word before the run has the same ending.
        while text[end - 1].isalnum() and text[end].isalnum():
            end += 1
    return end


def _num_repeated(text: str, length: int, most: int) -> int:
    """Return the length of the longest end of `text[:length]`, up to `most`, that also stands shortly before.

    An end longer than any run is cut to the length of a run.
    """
    low, high = 0, min(most, _MAX_RUN, length - 1)
    while low < high:
        middle = (low + high + 1) // 2
        lowest = max(0, length - middle - _MAX_UNIT)
        if text.rfind(text[length - middle : length], lowest, length - 1) >= 0:
            low = middle
        else:
            high = middle - 1
    return low
