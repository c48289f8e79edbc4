"""The client of the load tester's other runs: asks after each key for which no other key came for the debounce."""

from collections import deque
from collections.abc import Callable

from completion_client.editing import Change, Mode, Trigger
from loadtest.simulation.patterns.port import Answer, Ask, Client, Document, Port, is_whole

_DEBOUNCE_MS = 50
_MAX_TOKENS = 24
_CACHE_ENTRIES = 8


class EveryKey(Client):
    """The editor of the scenarios: typing.debounce_ms and the keys of [editor], with their defaults."""

    def __init__(self, port: Port) -> None:
        """Begin without a document."""
        self._port = port
        self._document = Document("", "", "")
        self._recent: deque[tuple[Document, str]] = deque(maxlen=_CACHE_ENTRIES)
        self._asked: tuple[Document, Callable[[], None]] | None = None
        self._text = ""
        """The text so far of the open request."""
        self._num_changes = 0

    def changed(self, document: Document, change: Change) -> None:
        """See Client."""
        self._document = document
        self._num_changes += 1
        if self._asked and not self._is_typed_along(*self._asked):
            self._asked = None
        number = self._num_changes
        self._port.show("")
        self._port.call_at(self._port.now_ms() + _DEBOUNCE_MS, lambda: self._debounced(number))

    def moved(self, document: Document) -> None:
        """See Client."""
        self.changed(document, Change.OTHER)

    def accepted(self, document: Document, _inserted: str) -> None:
        """See Client."""
        self.changed(document, Change.OTHER)

    def _is_typed_along(self, asked: Document, cancel: Callable[[], None]) -> bool:
        """Tell whether the user types the text so far of the open request; cancel it if not."""
        typed = _typed_since(asked, self._document)
        if typed is not None and self._text and (self._text.startswith(typed) or typed.startswith(self._text)):
            return True
        cancel()
        return False

    def _debounced(self, number: int) -> None:
        if number != self._num_changes:
            return
        rest = next((rest for each in reversed(self._recent) if (rest := _rest(*each, self._document)).strip()), "")
        if rest:
            self._port.show(rest)
            return
        document, self._text = self._document, ""

        def on_text(text: str) -> None:
            if document == self._document:
                self._text = text
                self._port.show(text)

        def on_end(text: str, reason: str) -> None:
            if is_whole(reason):
                self._recent.append((document, text))

        ask = Ask(document, Trigger.AUTOMATIC, Mode.MULTI_LINE, _MAX_TOKENS)
        self._asked = document, self._port.send(ask, Answer(on_end, on_text))


def _typed_since(earlier: Document, document: Document) -> str | None:
    if (earlier.uri, earlier.after) != (document.uri, document.after):
        return None
    return document.before[len(earlier.before) :] if document.before.startswith(earlier.before) else None


def _rest(earlier: Document, text: str, document: Document) -> str:
    """Return the text that is left of an answer; "" if it does not fit."""
    typed = _typed_since(earlier, document)
    return text[len(typed) :] if typed is not None and text.startswith(typed) else ""
