"""The interface between a simulated client, its user, its screen and the server."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from completion_client.editing import Change, Mode, Trigger


@dataclass(frozen=True, slots=True)
class Document:
    """A document divided at the cursor."""

    uri: str
    before: str
    after: str

    @property
    def line_after(self) -> str:
        """The rest of the cursor's line."""
        return self.after.partition("\n")[0]

    def typed(self, text: str) -> "Document":
        """Return the document with text in front of the cursor."""
        return Document(self.uri, self.before + text, self.after)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks."""

    document: Document
    trigger: Trigger
    mode: Mode
    max_tokens: int
    line_limit_s: float | None = None
    """The answer ends with its first line that ends so long after the first text; None sets no limit."""


class Listener(Protocol):
    """Receives the answer to a request."""

    def on_text(self, text: str) -> None:
        """Take text that continues the answer."""
        ...

    def on_end(self, reason: str, retry_after_ms: float | None) -> None:
        """Take the finish reason in lower case, and when to ask again if the request was shed."""
        ...


class Port(Protocol):
    """What a client can do."""

    def now_ms(self) -> float:
        """Return the time."""
        ...

    def call_at(self, at_ms: float, call: Callable[[], None]) -> None:
        """Call something at a time; what was to be called before is called, too."""
        ...

    def send(self, ask: Ask, listener: Listener) -> Callable[[], None]:
        """Send a request; return what cancels it."""
        ...

    def show(self, text: str) -> None:
        """Show text at the cursor, "" for none."""
        ...


class Client(ABC):
    """An editor's client, with one document in front."""

    @abstractmethod
    def changed(self, document: Document, change: Change) -> None:
        """Take a change of the text; nothing is shown at this moment unless the client shows it again."""

    @abstractmethod
    def moved(self, document: Document) -> None:
        """Take a move of the cursor; the same."""

    @abstractmethod
    def accepted(self, document: Document, inserted: str) -> None:
        """Take an acceptance of the whole shown text; the same."""

    def rejected(self) -> None:  # noqa: B027 - not every client does something
        """Take Esc; the shown text is hidden."""


class Answer:
    """Collects an answer and tells its end."""

    def __init__(self, on_end: Callable[[str, str], None], on_text: Callable[[str], None] = lambda _text: None) -> None:
        """`on_text` gets the text so far, `on_end` the whole text and the finish reason."""
        self._on_end, self._on_text = on_end, on_text
        self._text = ""

    def on_text(self, text: str) -> None:
        """See Listener."""
        self._text += text
        self._on_text(self._text)

    def on_end(self, reason: str, _retry_after_ms: float | None) -> None:
        """See Listener."""
        self._on_end(self._text, reason)


def is_whole(reason: str) -> bool:
    """Tell whether a finish reason is that of a whole answer."""
    return reason in {"stop", "length"}
