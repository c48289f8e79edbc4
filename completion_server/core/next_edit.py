"""The next edit of a document: what a request for it has beside the fields of a completion, and its answer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecentEdit:
    """A change that the user made."""

    uri: str
    """Of the document that was changed."""
    diff: str
    """Hunks of a unified diff, each line of which belongs to one."""


@dataclass(frozen=True, slots=True)
class NextEdit:
    """What a next edit is asked from."""

    document_version: int = 0
    recent_edits: tuple[RecentEdit, ...] = ()
    """The oldest first."""
    lines_before: int | None = None
    """Lines above the cursor's that may change; None for those that suit the model."""
    lines_after: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of whole lines."""

    document_version: int
    first_line: int
    """Counted from the cursor's line, which is 0."""
    line_count: int
    """0 inserts before `first_line`."""
    text: str
    """The new lines with their ends."""
