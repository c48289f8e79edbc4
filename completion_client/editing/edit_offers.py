"""Edits that may be shown, and the versions of documents that they are for. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from completion_client.editing.feedback import Feedback, num_units
from completion_client.editing.line_edits import LineEdit, fitted


@dataclass(frozen=True, slots=True)
class EditPlace:
    """A version of a document, and the cursor's line in it."""

    uri: str
    version: int
    line: int

    def is_same_text(self, other: "EditPlace | None") -> "TypeGuard[EditPlace]":
        """Tell whether the other place is in the same version of the document."""
        return other is not None and (self.uri, self.version) == (other.uri, other.version)


@dataclass(frozen=True, slots=True)
class Asked:
    """An open request."""

    request: int
    place: EditPlace
    lines: Sequence[str]
    """The document's."""

    def offer(self, edit: LineEdit) -> "EditOffer | None":
        """Return the edit of the answer, whose lines are counted from the cursor's; None if it changes nothing."""
        found = fitted(self.lines, LineEdit(self.place.line + edit.first, edit.num_lines, edit.text))
        if found is None:
            return None
        old = "".join(self.lines[found.first : found.first + found.num_lines])
        num_characters = min(num_units(found.text), num_units(edit.text))
        return EditOffer(self.request, self.place, found, old, num_characters, Feedback(self.request))


@dataclass(frozen=True, slots=True)
class EditOffer:
    """An edit that is or was shown."""

    request: int
    place: EditPlace
    edit: LineEdit
    old: str
    """The text that it replaces."""
    num_characters: int
    """New ones, in UTF-16 code units, at most those of the answer."""
    feedback: Feedback

    @property
    def content(self) -> tuple[str, str, str]:
        """What makes it the same edit as another."""
        return self.place.uri, self.old, self.edit.text
