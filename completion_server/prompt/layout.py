"""The layout of a prompt: its parts as tokens, and their places in the document.

It is remembered for the document's next request, which keeps the start of the window, the line of the middle marker,
the end of the suffix and the snippets as long as they fit.
"""

from dataclasses import dataclass, field
from sys import getsizeof

from completion_server.prompt.clipping import SentText
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.snippets import Rendered, SnippetRenderer
from completion_server.prompt.templates import Template
from completion_server.prompt.tokens.reuse import Encoded, Encoder
from completion_server.prompt.window import HEAD_CHARACTERS, find_window

LEAST_CHARACTERS_A_TOKEN = 2.0
CHARACTERS_A_TOKEN = 4
"""Estimate for code that is not tokenised yet."""

_OBJECTS_BYTES = 1024
"""Memory of the objects that hold the parts."""


@dataclass(frozen=True, slots=True)
class LayoutContext:
    """The settings and tools that all layouts of a model share."""

    encoder: Encoder
    template: Template
    settings: PromptSettings
    renderer: SnippetRenderer
    budget: int
    """Tokens for text: all but the bos token, the preamble and the markers."""
    longest_token: int
    """Characters of the longest token."""
    opening: str
    """Text before the window in every prompt: the blank of SentencePiece, a preamble that no marker separates."""


@dataclass(frozen=True, slots=True)
class LayoutSpan:
    """The span of the document that a layout shows: offsets, and the budgets of the other parts."""

    start: int
    """Offset in the request's prefix at which the window starts."""
    split: int
    """Offset in the request's prefix of the text behind the middle marker."""
    suffix_budget: int
    """In tokens."""
    snippet_budget: int
    """In tokens."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of one prompt, with the text that locates them in the document's next request."""

    prefix: Encoded
    suffix: Encoded
    typed: Encoded
    snippets: Rendered
    span: LayoutSpan
    head: str
    """The first characters of the window."""
    sent: SentText
    """What is remembered of the request's prefix."""
    suffix_left: int
    """Characters of the request's suffix that are not shown."""
    offered: int
    """A hash of the snippets that came with the request, which may be far larger than the part that is shown."""
    laid_out_at: float
    """Clock seconds at which the layout was made."""
    num_laid_out: int
    """Tokens left of the cursor at that time."""
    num_bytes: int = field(init=False)
    """Estimated memory of the layout."""

    def __post_init__(self) -> None:
        """Add up the memory of the parts, once: parts never change."""
        parts = self.prefix, self.suffix, self.typed
        arrays = (array for part in parts for array in (part.ids, part.starts, part.firsts))
        texts = (*(part.text for part in parts), self.snippets.lead, self.head, self.sent.top)
        num_bytes = _OBJECTS_BYTES + sum(map(getsizeof, (*arrays, *texts, self.snippets.ids)))
        object.__setattr__(self, "num_bytes", num_bytes)

    @property
    def window(self) -> str:
        """The part of the document before the middle marker; before the cursor without a marker."""
        return self.prefix.text[len(self.prefix.text) - (self.span.split - self.span.start) :]

    def find_window(self, prefix: str, lookback: int) -> int | None:
        """Return where the window starts in a later prefix; None if it can't be found in its last characters."""
        num_left = self.span.split - self.span.start + len(self.typed.text)
        is_moved = not self.sent.begins_like(prefix)
        return find_window(prefix, self.span.start, self.head, num_left, lookback, is_moved=is_moved)

    def sent_next(self, prefix: str, start: int | None) -> SentText:
        """Return what to remember of a later prefix, in which the window starts at `start`."""
        shown = "" if self.span.start else self.window + self.typed.text
        return self.sent.next(prefix, shown, has_moved_up=start is not None and start < self.span.start)

    def find_split(self, prefix: str) -> int | None:
        """Return where the text behind the middle marker starts in a later prefix; None if that lacks the window."""
        window = self.window
        found = self.find_window(prefix, 2 * len(window) + HEAD_CHARACTERS)
        if found is None or not prefix.startswith(window, found):
            return None
        return found + len(window)

    @property
    def num_tokens(self) -> int:
        """Tokens that count against the budget of the context."""
        in_front = len(self.snippets.ids)
        return in_front + len(self.prefix.ids) + len(self.suffix.ids) + len(self.typed.ids)

    @property
    def characters_a_token(self) -> float:
        """The average characters of a token left of the cursor."""
        characters, tokens = len(self.prefix.text) + len(self.typed.text), len(self.prefix.ids) + len(self.typed.ids)
        return max(LEAST_CHARACTERS_A_TOKEN, characters / max(1, tokens))
