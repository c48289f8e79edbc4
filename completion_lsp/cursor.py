"""Where an editor asks for text, and what changed there. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from completion_client.editing import Change, Text
from completion_lsp.documents import Document, Edit
from completion_lsp.positions import unix_lines

_MOST_TYPED = 8
"""Characters of an insertion that counts as keys: some editors send the keys of a short time as one."""
_FAR_LINES = 24
"""A place so many lines away is another one."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the editor asks for text. Offsets are characters."""

    document: Document
    start: int
    end: int
    known: str = ""
    """The selected item of the editor's menu, which replaces the text between."""

    @property
    def text(self) -> Text:
        """The document divided behind the known text, which stands in place of what it replaces.

        Lines end with "\\n", as in answers.
        """
        source = self.document.source
        return Text(self.document.uri, unix_lines(source[: self.start] + self.known), unix_lines(source[self.end :]))

    def is_far_from(self, other: "Cursor") -> bool:
        """Tell whether another cursor is at another place, whose surroundings are others."""
        if self.document is not other.document:
            return True
        start, end = sorted((self.start, other.start))
        return self.document.source.count("\n", start, end) > _FAR_LINES


def kind_of(edits: Sequence[Edit]) -> Change:
    """Return what kind of change some edits are; the protocol does not say."""
    if len(edits) != 1:
        return Change.OTHER
    (edit,) = edits
    if not edit.text:
        return Change.DELETED
    is_typed = edit.start == edit.end and (len(edit.text) <= _MOST_TYPED or not edit.text.strip())
    return Change.TYPED if is_typed else Change.PASTED
