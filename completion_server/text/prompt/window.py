"""Chooses the window of a text: whole lines, cut at places that do not move with the cursor. Pure functions of text.

The start is chosen by content, not by distance: among the possible lines, lines at the left margin first, the line with
the smallest hash. So requests that see a little more or less of the document choose the same line, on any replica,
whether or not the editor sends the whole document.
"""

from bisect import bisect_right
from zlib import crc32

from completion_server.core.immutable import immutable
from completion_server.text.prompt.tokens.reuse import Encoded

HEAD_CHARACTERS = 128
"""Characters of a window's start that are remembered to find it again."""
_MIN_HEAD_CHARACTERS = 24
_CLIPPED_SOON = 16
"""A window that starts so near to the start of a text that moves is given up: at the next key it may be cut off, and in
text that repeats itself another place would pass for it."""

TOP_CHARACTERS = 128
"""Characters of a text's start that are remembered."""
_MIN_PIECE = 24
_PIECES_AT = (0, 256, 1024, 4096)
"""Offsets of the pieces of a text that are looked for in the earlier one: several, because an edit may be in one."""
_GROWTH = 1.25
"""A client that clips does not send so many times as much with an unmoved start."""


def is_line_start(text: str, offset: int) -> bool:
    """Return whether a line starts at the offset."""
    return offset == 0 or text[offset - 1 : offset] == "\n"


def find_window(
    text: str, start: int, head: str, num_left: int, lookback: int, *, is_moved: bool = False
) -> int | None:
    """Return the offset of the window that started at `start` with `head`; None if it can't be found.

    Looks at the old offset, then for the same distance to the cursor, `num_left`, then in the last `lookback`
    characters: the window moves when the document grows or shrinks above it, and when the client clips the text. A
    window from the start of the text stays there. `is_moved` says that the text begins otherwise than before, so that
    the old offset means nothing. The cost is bounded, whatever the text is.
    """
    if start == 0:
        return 0
    if not is_moved and text.startswith(head, start) and is_line_start(text, start):
        return start
    if len(head) < _MIN_HEAD_CHARACTERS:
        return None
    first, expected = max(0, len(text) - lookback), len(text) - num_left
    if is_moved and expected < _CLIPPED_SOON:
        return None
    for begin, last in ((max(first, expected - HEAD_CHARACTERS), expected), (first, 0)):
        found = _find_line(text, head, begin, last)
        if found > 0:
            return found
    return 0 if first == 0 and text.startswith(head) else None


def _find_line(text: str, head: str, begin: int, last: int) -> int:
    """Return the last line start from `begin` to `last` that has this head, else the first one behind; 0 for none."""
    line = "\n" + head
    found = following = text.find(line, max(0, begin - 1))
    while 0 <= following < last:
        found = following
        following = text.find(line, found + 1, last + len(head))
    return found + 1


def find_end(text: str, shown: str, num_hidden: int, reach: int) -> int | None:
    """Return the offset at which `shown` ended, the start of an earlier text, in this text; None if it can't be found.

    `num_hidden` is how many characters of the earlier text stood behind it. If that place does not have its last
    characters, they are looked for in the first `reach` characters: the place moves when the client clips the text.
    """
    end, tail = len(text) - num_hidden, shown[-HEAD_CHARACTERS:]
    if tail and 0 <= end <= reach and text.endswith(tail, 0, end):
        return end
    if len(tail) >= _MIN_HEAD_CHARACTERS:
        for begin in (max(0, len(shown) - 2 * len(tail)), 0):
            found = text.find(tail, begin, reach)
            if found >= 0:
                return found + len(tail)
    is_whole = 0 <= end <= reach and (end == len(text) or text[end - 1 : end] == "\n")
    return end if is_whole else None


def choose_start(shown: Encoded, budget: int, step: float, *, is_sliding: bool = False) -> int:
    """Return the offset at which the window starts, for a budget in tokens; the text's length for an empty window.

    The whole text is taken if it fits. Otherwise one to two steps of the budget are left free, so that the text can
    grow before the window moves again. `is_sliding` says that the text's own start moves, because the client clips the
    text: then a start is chosen that stays in the text for a while.
    """
    text, total = shown.text, len(shown.ids)
    if total <= budget and not is_sliding:
        return 0
    capacity = min(total, budget)
    most, least = capacity * (1 - step), capacity * (1 - 2 * step)
    first_fit = len(text)
    best: tuple[bool, int] | None = None
    chosen = len(text)
    for start in _line_starts(text):
        left = total - shown.num_tokens_before(start)
        if left > most:
            continue
        first_fit = min(first_fit, start)
        if left < least:
            break
        rank = _rank(text, start)
        if best is None or rank < best:
            best, chosen = rank, start
    return first_fit if best is None else chosen


def _line_starts(text: str) -> list[int]:
    starts = [0]
    at = text.find("\n") + 1
    while 0 < at < len(text):
        starts.append(at)
        at = text.find("\n", at) + 1
    return starts


def _rank(text: str, start: int) -> tuple[bool, int]:
    end = text.find("\n", start)
    line = text[start : len(text) if end < 0 else end]
    return (not line or line[0].isspace(), crc32(line.encode("utf-8", "surrogatepass")))


def last_lines(text: str, end: int, num_characters: int) -> int:
    """Return the start of the first whole line of the last `num_characters` before the line start `end`."""
    if end <= num_characters:
        return 0
    at = text.find("\n", end - num_characters - 1, end) + 1
    return at if at > 0 else end


def first_lines(text: str, num_characters: int) -> str:
    """Return the whole lines in the first `num_characters`; if no line ends there, exactly these characters."""
    if len(text) <= num_characters:
        return text
    end = text.rfind("\n", 0, num_characters) + 1
    return text[: end or num_characters]


def cut_to_lines(shown: Encoded, budget: int) -> int:
    """Return the offset at which to cut the text to `budget` tokens: behind a line, or inside the first one."""
    if len(shown.ids) <= budget:
        return len(shown.text)
    if shown.firsts:
        offset = shown.starts[bisect_right(shown.firsts, budget) - 1]
    else:
        offset = budget * len(shown.text) // len(shown.ids)
    return shown.text.rfind("\n", 0, offset) + 1 or offset


@immutable
class SentText:
    """What is remembered of the text before the cursor that a client sent, to notice that the client clips it.

    A client may send the last 1,500 characters, or the last 40 lines, so that the text's start moves while the user
    types. It does not say so, and nothing in one text shows it. Two texts in a row do: the later one begins inside the
    earlier one.
    """

    top: str
    """Its first characters."""
    num_characters: int
    clip_size: int
    """Characters of the smallest text that the client was seen to clip; 0 if it was not seen to."""

    @property
    def is_clipped(self) -> bool:
        """Whether the client clipped this text, as far as is known."""
        return 0 < self.clip_size <= self.num_characters

    def begins_like(self, text: str) -> bool:
        """Return whether another text begins like this one, as far as both go."""
        return text.startswith(self.top[: len(text)])

    def next(self, text: str, shown: str, *, has_moved_up: bool) -> "SentText":
        """Return what to remember of the text that follows this one.

        `shown` is a part of this text from its start, or "". `has_moved_up` says that text which both have is nearer to
        the start of the later one.
        """
        known, top = self.clip_size, text[:TOP_CHARACTERS]
        if self.begins_like(text):
            has_grown = len(text) > known * _GROWTH + TOP_CHARACTERS
            return SentText(top, len(text), 0 if has_grown else known)
        is_as_long = len(text) == self.num_characters > 2 * TOP_CHARACTERS
        if has_moved_up or is_as_long or num_clipped(text, shown) > 0:
            known = min(known or len(text), len(text))
        return SentText(top, len(text), known)


def first_sent(text: str, clip_size: int = 0) -> SentText:
    """Return what to remember of a document's first text; `clip_size` is known from the client's other documents."""
    return SentText(text[:TOP_CHARACTERS], len(text), clip_size)


def num_clipped(text: str, earlier: str) -> int:
    """Return how many characters of the start of `earlier` are missing in `text`; 0 if it does not begin inside it.

    Takes a few searches for short pieces, whatever the texts are.
    """
    for at in _PIECES_AT:
        piece = text[at : at + min(TOP_CHARACTERS, (len(text) - at) // 2)]
        if len(piece) < _MIN_PIECE:
            break
        found = earlier.find(piece)
        if found >= 0:
            return max(0, found - at)
    return 0
