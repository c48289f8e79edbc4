"""Zeta 2 and 2.1 of Zed, which are fine-tuned from Seed-Coder-8B-Base.

After the models' cards and the examples that go with them: first the text behind the region, then related files, the
recent edits as unified diffs, and the file up to the region. Zeta 2 has the region between the markers of a merge
conflict and writes it anew. Zeta 2.1 has a numbered marker at each end of a block of lines, and writes the blocks from
one marker to another.
"""

import re
from typing import ClassVar

from completion_server.text.prompt.edits.region import Reach, Region
from completion_server.text.prompt.edits.template import EditTemplate, Marker, Part, View, without_last_break

_CURSOR = "<|user_cursor|>"
_FILE = Marker("<filename>")
_NO_EDITS = "NO_EDITS"
_NUMBERED = re.compile(r"<\|marker_(\d+)\|>")

_LEAST_LINES, _MOST_LINES = 6, 16
"""Lines in a block of Zeta 2.1."""
_LOOKAHEAD_LINES = 5
_TAILS = frozenset({"}", "};", "},", ")", ");", "),", "]", "];", "],", "end", "return;"})
"""Lines that end a block of code: none begins with one of them."""


class Zeta2(EditTemplate):
    """Zeta 2."""

    name: ClassVar[str] = "zeta-2"
    hints: ClassVar[tuple[str, ...]] = ("zeta-2", "zeta2")
    markers: ClassVar[tuple[str, ...]] = ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>", "<filename>")
    ends: ClassVar[tuple[str, ...]] = ("<[end▁of▁sentence]>",)
    words: ClassVar[tuple[str, ...]] = ("<<<<<<< CURRENT", ">>>>>>> UPDATED", _CURSOR)
    stops: ClassVar[tuple[str, ...]] = (">>>>>>> UPDATED", "<[end▁of▁sentence]>")
    reach: ClassVar[Reach] = Reach(15, 15)
    shown: ClassVar[Reach] = Reach(20, 20)
    max_edits: ClassVar[int] = 6

    def render(self, view: View) -> list[Part]:
        """Return the prompt."""
        below = f"\n{view.below}"
        parts: list[Part] = [Marker("<[fim-suffix]>"), below if below.endswith("\n") else f"{below}\n"]
        parts.append(Marker("<[fim-prefix]>"))
        for snippet in view.snippets:
            parts += [_FILE, f"{snippet.path}\n{snippet.text}"]
        if view.snippets:
            parts.append("\n")
        if view.edits:
            edits = "".join(f"--- a/{each.path}\n+++ b/{each.path}\n{each.diff}" for each in view.edits)
            parts += [_FILE, f"edit_history\n{edits}\n"]
        return [*parts, _FILE, f"{view.path}\n{view.above}{self._region(view)}", Marker("<[fim-middle]>")]

    def _region(self, view: View) -> str:
        return f"<<<<<<< CURRENT\n{view.marked(_CURSOR)}\n=======\n"

    def read(self, answer: str, region: Region, *, is_stopped: bool) -> str | None:
        """Return the region's new text, which ends before the marker ">>>>>>> UPDATED"."""
        text = without_last_break(answer.replace(_CURSOR, "", 1), region, is_stopped=is_stopped)
        return None if text.strip() == _NO_EDITS else text


class Zeta21(Zeta2):
    """Zeta 2.1."""

    name: ClassVar[str] = "zeta-2.1"
    hints: ClassVar[tuple[str, ...]] = ("zeta-2.1", "zeta2.1", "zeta-2_1")
    words: ClassVar[tuple[str, ...]] = ("<|marker_", _CURSOR)
    stops: ClassVar[tuple[str, ...]] = ("<[end▁of▁sentence]>",)

    def _region(self, view: View) -> str:
        text = view.marked(_CURSOR)
        starts = [0, *block_starts(view.region.text)]
        cursor = view.region.cursor_offset
        shifted = [start + len(_CURSOR) if start and start >= cursor else start for start in starts]
        pieces = [text[begin:end] for begin, end in zip(shifted, [*shifted[1:], len(text)], strict=True)]
        numbered = "".join(f"<|marker_{number}|>{piece}" for number, piece in enumerate(pieces, 1))
        return f"{numbered}<|marker_{len(pieces) + 1}|>\n"

    def read(self, answer: str, region: Region, *, is_stopped: bool) -> str | None:
        """Return the region with the blocks between the answer's first and last marker replaced.

        The markers between them are dropped. The same marker twice says that nothing changes.
        """
        found = list(_NUMBERED.finditer(answer))
        old = region.text
        bounds = [0, *block_starts(old), len(old)]
        if len(found) <= 1:
            return None
        first, last = (int(each.group(1)) for each in (found[0], found[-1]))
        if not 1 <= first < last <= len(bounds):
            return None
        new = _NUMBERED.sub("", answer[found[0].end() : found[-1].start()]).replace(_CURSOR, "", 1)
        if new and last < len(bounds) and not new.endswith("\n"):
            new += "\n"
        return old[: bounds[first - 1]] + new + old[bounds[last - 1] :]


def block_starts(text: str) -> list[int]:
    """Return the offsets of the lines that begin a block of Zeta 2.1, without the first block.

    A block has 6 to 16 lines. It begins behind a blank line if it can, and never with a line that ends code.
    """
    lines = text.split("\n")
    starts, begun, offset = [], 0, 0
    offsets = []
    for line in lines:
        offsets.append(offset)
        offset += len(line) + 1
    at = _LEAST_LINES
    while at < len(lines):
        is_behind_blank = not lines[at - 1].strip()
        if is_behind_blank or at - begun >= _MOST_LINES:
            at = next(
                (each for each in range(at, min(at + _LOOKAHEAD_LINES + 1, len(lines))) if _begins(lines[each])), at
            )
            starts.append(offsets[at])
            begun = at
            at += _LEAST_LINES
        else:
            at += 1
    return starts


def _begins(line: str) -> bool:
    visible = line.strip()
    return bool(visible) and visible not in _TAILS
