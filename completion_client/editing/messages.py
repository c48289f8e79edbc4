"""What the policy is told and its decisions."""

from dataclasses import dataclass
from enum import Enum

from completion_client.editing.line_edits import LineEdit


class Change(Enum):
    """What changed a text."""

    TYPED = "typed"
    """Keys, also if the editor added a closing bracket by itself."""
    PASTED = "pasted"
    """A paste or a drop."""
    DELETED = "deleted"
    """Backspace, a cut."""
    UNDONE = "undone"
    """Undo or redo."""
    OTHER = "other"
    """A formatter, another program, another user."""


class Trigger(Enum):
    """The cause of a request, as in the contract."""

    AUTOMATIC = "automatic"
    EXPLICIT = "explicit"
    PREFETCH = "prefetch"


class Mode(Enum):
    """The extent of a completion, as in the contract."""

    SINGLE_LINE = "single_line"
    MULTI_LINE = "multi_line"


class Extent(Enum):
    """How much of a shown text was accepted; the value is the kind of the report."""

    WHOLE = "accepted"
    WORD = "accepted_word"
    LINE = "accepted_line"


@dataclass(frozen=True, slots=True)
class Text:
    """A document divided at the cursor: the whole of it, or always cut at the same place."""

    uri: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Report:
    """Report feedback on a request."""

    request: int
    kind: str
    """The feedback's kind in lower case, such as "accepted_word"."""
    characters: int = 0
    """Accepted characters, in UTF-16 code units."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request; what still comes of it is ignored."""

    request: int


@dataclass(frozen=True, slots=True)
class Hide:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Show:
    """Show text at the cursor instead of what was shown."""

    request: int
    text: str
    replaced: int = 0
    """Characters after the cursor that the text replaces: brackets that the editor closed by itself."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request for the present text."""

    request: int
    """Numbers rise by one from 1."""
    trigger: Trigger
    mode: Mode


@dataclass(frozen=True, slots=True)
class AskEdit:
    """Send a request for the next edit of the present text."""

    request: int
    """Numbers rise by one from 1, apart from those of completions."""


@dataclass(frozen=True, slots=True)
class ShowEdit:
    """Show an edit of the present text."""

    request: int
    version: int
    """The version of the document that it is for; it is never applied to another."""
    edit: LineEdit


@dataclass(frozen=True, slots=True)
class Wait:
    """Call `tick` at this time, instead of at any that was named before."""

    until_ms: float


Decision = Report | Cancel | Hide | Show | Ask | Wait
EditDecision = Report | Cancel | Hide | ShowEdit | AskEdit | Wait
"""A decision on next edits; requests have other numbers than those of completions."""
