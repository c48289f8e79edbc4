"""What stands in a prompt, and where.

A layout is the prompt's text, cut up and tokenised: where the window starts, which line the middle marker stands
before, how far the suffix goes, which snippets are shown. It is remembered for the document's next request.
"""

from dataclasses import dataclass, field
from sys import getsizeof

from completion_server.prompt.reuse import Encoded, Encoder
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.snippets import Rendered, SnippetRenderer
from completion_server.prompt.templates import Template
from completion_server.prompt.window import HEAD_CHARACTERS, find_window

LEAST_CHARACTERS_A_TOKEN = 2.0
CHARACTERS_A_TOKEN = 4
"""What code takes at first sight."""

_OBJECTS_BYTES = 1024
"""Memory of the objects that hold the parts."""


@dataclass(frozen=True, slots=True)
class Kit:
    """What all layouts of a model share."""

    encoder: Encoder
    template: Template
    settings: PromptSettings
    renderer: SnippetRenderer
    budget: int
    """Tokens for all but the bos token, the preamble and the markers."""
    longest_token: int
    """Characters of the longest token."""
    opening: str
    """Text before the window whatever is shown: the blank of SentencePiece, a preamble that no marker separates."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layout's parts are, and what they may take."""

    start: int
    """Offset in the request's prefix at which the window starts."""
    split: int
    """Offset in the request's prefix of the text behind the middle marker."""
    suffix_budget: int
    """Tokens."""
    snippet_budget: int
    """Tokens."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One prompt, and how to find its parts again in the next request for the document."""

    prefix: Encoded
    suffix: Encoded
    typed: Encoded
    snippets: Rendered
    place: Place
    head: str
    """The first characters of the window."""
    top: str
    """The first characters of the request's prefix."""
    suffix_left: int
    """Characters of the request's suffix that are not shown."""
    offered: int
    """A hash of the snippets that came with the request; they may be far larger than what is shown of them."""
    laid_out_at: float
    """Clock seconds at which it was laid out anew."""
    num_laid_out: int
    """Tokens left of the cursor then."""
    num_bytes: int = field(init=False)
    """Memory that it takes, about."""

    def __post_init__(self) -> None:
        """Add its parts up, once: parts never change."""
        parts = self.prefix, self.suffix, self.typed
        arrays = (array for part in parts for array in (part.ids, part.starts, part.firsts))
        texts = (*(part.text for part in parts), self.snippets.lead, self.head, self.top)
        num_bytes = _OBJECTS_BYTES + sum(map(getsizeof, (*arrays, *texts, self.snippets.ids)))
        object.__setattr__(self, "num_bytes", num_bytes)

    def find_split(self, prefix: str) -> int | None:
        """Return where the text behind the middle marker starts in a later prefix; None if that lacks this window."""
        start, split = self.place.start, self.place.split
        window = self.prefix.text[len(self.prefix.text) - (split - start) :]
        found = find_window(prefix, start, self.head, 2 * len(window) + HEAD_CHARACTERS)
        if found is None or not prefix.startswith(window, found):
            return None
        return found + len(window)

    @property
    def num_tokens(self) -> int:
        """Tokens that count against the kit's budget."""
        in_front = len(self.snippets.ids)
        return in_front + len(self.prefix.ids) + len(self.suffix.ids) + len(self.typed.ids)

    @property
    def characters_a_token(self) -> float:
        """What a token left of the cursor takes, on average."""
        characters, tokens = len(self.prefix.text) + len(self.typed.text), len(self.prefix.ids) + len(self.typed.ids)
        return max(LEAST_CHARACTERS_A_TOKEN, characters / max(1, tokens))
