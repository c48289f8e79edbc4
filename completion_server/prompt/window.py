"""Chooses the window of a text: whole lines, cut at places that do not move with the cursor. Pure functions of text.

The start is chosen by content, not by distance: among the possible lines, lines at the left margin first, the line with
the smallest hash. So requests that see a little more or less of the document choose the same line, on any replica,
whether or not the editor sends the whole document.
"""

from bisect import bisect_right
from zlib import crc32

from completion_server.prompt.tokens.reuse import Encoded

HEAD_CHARACTERS = 128
"""Characters of a window's start that are remembered to find it again."""
_MIN_HEAD_CHARACTERS = 24


def is_line_start(text: str, offset: int) -> bool:
    """Return whether a line starts at the offset."""
    return offset == 0 or text[offset - 1 : offset] == "\n"


def find_window(text: str, start: int, head: str, lookback: int) -> int | None:
    """Return the offset of the window that started at `start` with `head`; None if it can't be found.

    Looks at the old offset, then in the last `lookback` characters: the window moves when the document grows or shrinks
    above it, and when the client sends a fixed number of characters.
    """
    if start == 0 and not (is_clipped(text, head) and not text.startswith(head)):
        return 0
    if text.startswith(head, start) and is_line_start(text, start):
        return start
    if len(head) < _MIN_HEAD_CHARACTERS:
        return None
    at = text.find(head, max(0, len(text) - lookback))
    while at > 0 and not is_line_start(text, at):
        at = text.find(head, at + 1)
    return at if at >= 0 else None


def is_clipped(text: str, head: str) -> bool:
    """Return whether the text begins inside the old text's first lines, because the client cut off its start."""
    _, _, rest = head.partition("\n")
    if len(rest) < _MIN_HEAD_CHARACTERS:
        return False
    return 0 <= text.find(rest, 0, len(head)) < len(head) - len(rest)


def choose_start(shown: Encoded, budget: int, step: float, *, is_sliding: bool = False) -> int:
    """Return the offset at which the window starts, for a budget in tokens; the text's length for an empty window.

    The whole text is taken if it fits. Otherwise one to two steps of the budget are left free, so that the text can
    grow before the window moves again. `is_sliding` says that the text's own start moves with each key, because the
    client sends a fixed number of characters: then a start is chosen that stays in the text for a while.
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
