"""The layout of a prompt: its parts as tokens, and their places in the document.

It is remembered for the document's next request, which keeps the start of the window, the line of the middle marker,
the end of the suffix and the snippets as long as they fit. `Documents` holds the last layout of each document.
"""

from collections import OrderedDict
from dataclasses import field
from sys import getsizeof
from threading import Lock

from completion_server.core.immutable import immutable
from completion_server.core.request import Request
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.snippets import Rendered, SnippetRenderer
from completion_server.text.prompt.templates import Template
from completion_server.text.prompt.tokens.reuse import Encoded, Encoder, common_prefix
from completion_server.text.prompt.window import HEAD_CHARACTERS, SentText, find_window

LEAST_CHARACTERS_A_TOKEN = 2.0
CHARACTERS_A_TOKEN = 4
"""Estimate for code that is not tokenised yet."""

_OBJECTS_BYTES = 1024
"""Memory of the objects that hold the parts."""

Key = tuple[str, ...]


@immutable
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


@immutable
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


@immutable
class Layout:
    """The parts of one prompt, with the text that locates them in the document's next request."""

    prefix: Encoded
    suffix: Encoded
    typed: Encoded
    snippets: Rendered
    span: LayoutSpan
    num_lead: int
    """Characters before the window: those of `LayoutContext.opening` and of snippets that are comments."""
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
    def shown(self) -> str:
        """The part of the document before the cursor."""
        return (self.prefix.text + self.typed.text)[self.num_lead :]

    def find_window(self, prefix: str, lookback: int) -> int | None:
        """Return where the window starts in a later prefix; None if it can't be found in its last characters."""
        num_left = len(self.prefix.text) + len(self.typed.text) - self.num_lead
        is_moved = not self.sent.begins_like(prefix)
        return find_window(prefix, self.span.start, self.head, num_left, lookback, is_moved=is_moved)

    def sent_next(self, prefix: str, start: int | None) -> SentText:
        """Return what to remember of a later prefix, in which the window starts at `start`."""
        shown = "" if self.span.start else self.shown
        return self.sent.next(prefix, shown, has_moved_up=start is not None and start < self.span.start)

    def num_shared(self, request: Request) -> int | None:
        """Return the offset in a later request's prefix up to which its prompt is this one; None if it hardly is."""
        prefix, shown = request.prefix, self.shown
        found = self.find_window(prefix, 2 * len(shown) + HEAD_CHARACTERS)
        if found is None or not request.suffix.startswith(self.suffix.text):
            return None
        num_shared = common_prefix(prefix[found : found + len(shown)], shown)
        return found + num_shared if num_shared >= self.span.split - self.span.start else None

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


class Documents:
    """Holds the last layout of each document, up to a number of bytes. May be used from several threads.

    The least recently used layouts are dropped first. The key includes the caller's memory (`Caller.memory`), so that
    no text crosses from one caller to another.
    """

    def __init__(self, max_bytes: int) -> None:
        """Create a memory of at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._layouts: OrderedDict[Key, tuple[Layout, int]] = OrderedDict()
        """Layouts with the bytes that each takes."""
        self.num_bytes = 0
        """Bytes that the layouts take."""

    def __len__(self) -> int:
        """Return the number of documents remembered."""
        return len(self._layouts)

    def get(self, request: Request) -> Layout | None:
        """Return the last layout of the request's document."""
        key = _key(request)
        if key is None:
            return None
        with self._lock:
            layout, _num_bytes = self._layouts.get(key, (None, 0))
            return layout

    def put(self, request: Request, layout: Layout) -> None:
        """Remember the layout. If two requests of a document are built at once, the later one stays."""
        key = _key(request)
        if key is None:
            return
        num_bytes = layout.num_bytes + sum(map(getsizeof, key))
        with self._lock:
            _older, freed = self._layouts.pop(key, (None, 0))
            self._layouts[key] = layout, num_bytes
            self.num_bytes += num_bytes - freed
            while self.num_bytes > self._max_bytes:
                _stalest, (_layout, freed) = self._layouts.popitem(last=False)
                self.num_bytes -= freed


def _key(request: Request) -> Key | None:
    memory = request.caller.memory
    return None if memory is None else (*memory, request.document_uri)
