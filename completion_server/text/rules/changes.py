"""Finds the rest of the cursor's line in a completion that repeats it with changes.

A line that begins with the word right of the cursor and ends with the last word or character of the rest has no place
before the rest and is dropped, such as "en(path, 'r')" between "op" and "en(path)". A comma or a blank at its end shows
that the rest is to follow.

The rest may begin with a mark: a word or an operator between blanks, as in " as f:", or one of ",;:" before a blank. A
line with that mark, outside of brackets and quotes of its own, is cut there if it can't stand before the rest. That is
so if it closes a bracket that the rest closes, such as "a, c)" before ", b)", or ends with the same one of ":;{" as the
rest, such as "open(path) as file:" before " as f:". From the mark on it is withheld to its end; without such a bracket
or character in the rest, nothing is. In a string no mark counts.
"""

import re

from completion_server.text.rules.brackets import Brackets, is_word

_TOKEN = re.compile(r"\w+|\W")
_MARK = re.compile(r"(\s)\s*(\w+|[^\w\s()\[\]{}\"'`]+)\s|([,;:])\s")
_ENDS = frozenset(":;{")
_NEVER = re.compile(r"(?!)")


class ChangedRest:
    """Recognises the rest of the cursor's line with changes in a line that follows `brackets`."""

    def __init__(self, rest: str, code: str, brackets: Brackets, kept: tuple[str, ...]) -> None:
        """Take the rest, also as `code` without a comment, and the brackets before it, of which it closes `kept`."""
        self._core = rest.strip()
        self._brackets = brackets
        self._word = _TOKEN.findall(rest)[0] if is_word(rest[:1]) else ""
        """The word, or its end, right of the cursor."""
        behind = brackets.copy()
        behind.read(code)
        is_closed = brackets.opened[: len(kept)] == kept and not behind.is_in_string and not behind.has_crossing
        self._kept = kept if is_closed else ()
        self._end = code[-1] if code[-1:] in _ENDS else ""
        self._mark = self._mark_of(rest) if self._kept or self._end else _NEVER

    def _mark_of(self, rest: str) -> re.Pattern[str]:
        """Return the pattern of the mark that the rest begins with."""
        match = _MARK.match(rest)
        if match is None or self._brackets.is_in_string or self._brackets.is_in_hole:
            return _NEVER
        blank, token, separator = match.groups()
        return re.compile((r"(?<=\s)" if blank else "") + re.escape(token or separator) + r"(?=\s|$)")

    def find_start(self, line: str) -> int | None:
        """Return the index from which on an unfinished line may be the rest with changes."""
        return 0 if self._begins_like_rest(line) else self._brackets.find(self._mark, line, len(self._kept))

    def find_end(self, line: str, code: str) -> int | None:
        """Return the index from which on a whole line, of which `code` is left without a comment, is that."""
        if self._begins_like_rest(line):
            return 0 if not self._core.endswith(",") and self.ends_like_rest(line) else None
        at = self.find_start(code)
        return at if at is not None and self._has_no_place(code) else None

    def _has_no_place(self, line: str) -> bool:
        """Return whether a line can't stand before the rest: it closes what the rest closes, or ends like it."""
        behind = self._brackets.copy()
        behind.read(line)
        return behind.opened[: len(self._kept)] != self._kept or (self._end != "" and line.endswith(self._end))

    def _begins_like_rest(self, line: str) -> bool:
        """Return whether a line begins with the word right of the cursor."""
        end = len(self._word)
        return end > 0 and line.startswith(self._word) and not is_word(line[end : end + 1])

    def ends_like_rest(self, line: str) -> bool:
        """Return whether a line ends with the last word or character of the rest."""
        return bool(self._core) and _TOKEN.findall(line)[-1:] == _TOKEN.findall(self._core)[-1:]
