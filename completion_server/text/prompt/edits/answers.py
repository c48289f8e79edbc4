"""Reads answers: an edit is the smallest range of whole lines that changes. Pure."""

from collections.abc import Sequence

from completion_server.core.diffs import plain_breaks
from completion_server.core.next_edit import Edit
from completion_server.text.prompt.edits.region import Line, Region
from completion_server.text.prompt.edits.template import EditTemplate


def find_edit(region: Region, text: str, version: int) -> Edit | None:
    """Return the change from a region to its new text, which has no line break behind its last line.

    None if there is none. An answer that leaves nothing of the region, or differs only in the blank lines at its end,
    is a slip of the model.
    """
    new_text = plain_breaks(text)
    if new_text.rstrip("\n") == region.text.rstrip("\n") or (not new_text.strip() and region.text.strip()):
        return None
    old, new = region.lines, _with_ends(region, new_text.split("\n"))
    head = _num_common(old, new)
    tail = _num_common(old[head:][::-1], new[head:][::-1])
    changed = new[head : len(new) - tail]
    return Edit(
        document_version=version,
        first_line=region.first + head - region.cursor,
        line_count=len(old) - head - tail,
        text="".join(line.text + line.end for line in changed),
    )


def _with_ends(region: Region, texts: Sequence[str]) -> list[Line]:
    """Return the new lines with the ends of those that stay, and the document's own for the others."""
    old = region.lines
    own = [line.text for line in old]
    head = _num_common(own, texts)
    tail = _num_common(own[head:][::-1], texts[head:][::-1])
    line_break = next((line.end for line in (*old, *region.near) if line.end), "\n")
    ends = [line_break] * len(texts)
    ends[:head] = [line.end or line_break for line in old[:head]]
    if tail:
        ends[-tail:] = [line.end or line_break for line in old[-tail:]]
    ends[-1] = old[-1].end
    return [Line(text, end) for text, end in zip(texts, ends, strict=True)]


def _num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items two sequences share at their start."""
    num = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        num += 1
    return num


class EditAnswer:
    """Reads the answer to one request for a next edit. It has no text to send."""

    def __init__(self, template: EditTemplate, region: Region, version: int) -> None:
        """Read an answer in the form of `template`, about a region of the document's `version`."""
        self._template = template
        self._region = region
        self._version = version
        self._longest_stop = max(len(stop) for stop in template.stops)
        self._text = ""
        self._is_stopped = False
        self.is_done = False
        """Whether a stop word was read, which ends the answer."""
        self.has_whole_line = False
        """Half an edit is none."""

    @property
    def edit(self) -> Edit | None:
        """The edit that the text so far means; None if there is nothing to change."""
        text = self._template.read(self._text, self._region, is_stopped=self._is_stopped)
        if text is None or any(word in text for word in self._template.reserved):
            return None
        return find_edit(self._region, text, self._version)

    def feed(self, text: str) -> str:
        """Read more text, up to the first stop word. Returns ""."""
        begin = max(0, len(self._text) - self._longest_stop + 1)
        self._text += text
        found = [at for stop in self._template.stops if (at := self._text.find(stop, begin)) >= 0]
        if found:
            self._text, self.is_done = self._text[: min(found)], True
            self._is_stopped = True
        return ""

    def finish(self, *, is_cut: bool) -> str:
        """Read nothing more: the token that ended the answer, if it is not cut, is like a stop word. Returns ""."""
        self._is_stopped = self._is_stopped or not is_cut
        return ""
