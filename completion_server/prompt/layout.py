"""What stands in a prompt, and where.

A layout is the prompt's text, cut up and tokenised: where the window starts, which line the middle marker stands
before, how far the suffix goes, which snippets are shown. It is remembered for the document's next request.
"""

from dataclasses import dataclass

from completion_server.prompt.reuse import Encoded, Encoder
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.snippets import Rendered, SnippetRenderer
from completion_server.prompt.templates import Template

LEAST_CHARACTERS_A_TOKEN = 2.0


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
