"""The client llama.vim (ggml-org, MIT), as far as its requests and its hints go.

Read in its source of 2026: at each move of the cursor in insert mode it shows what its cache has for the text, up to
128 characters typed along, and asks; one request at a time, and while one runs it looks again 100 ms later; the text at
the cursor when that time has come is asked for unless its cache has that very text, even if a hint is shown. After it
has shown a hint it asks what follows it. A request is not cancelled. Nothing is asked with more than 8 characters
behind the cursor. The time limit (250 ms, 1,000 for what follows) holds from the first line's end on.

Assumed: the extra context of other places is left out, and that the cache forgets its oldest text.
"""

from collections import OrderedDict

from completion_client.editing import Change, Mode, Trigger
from loadtest.simulation.patterns.port import Answer, Ask, Client, Document, Port, is_whole

_LOOK_AGAIN_MS = 100
_MAX_TOKENS = 128
_FIRST_LIMIT_S, _NEXT_LIMIT_S = 0.25, 1.0
_MAX_LINE_SUFFIX = 8
_CACHE_KEYS = 250
_TYPED_CHARS = 128


class LlamaVim(Client):
    """Asks on each move of the cursor."""

    def __init__(self, port: Port) -> None:
        """Begin without a document."""
        self._port = port
        self._document = Document("", "", "")
        self._cache: OrderedDict[Document, str] = OrderedDict()
        self._is_asking = False
        self._num_looks = 0
        self._hint = ""

    def changed(self, document: Document, _change: Change) -> None:
        """See Client."""
        self.moved(document)

    def moved(self, document: Document) -> None:
        """See Client."""
        self._document, self._hint = document, ""
        self._port.show("")
        self._show_hint()
        self._ask("")

    def accepted(self, document: Document, _inserted: str) -> None:
        """See Client."""
        self.moved(document)

    def rejected(self) -> None:
        """See Client. Esc leaves the insert mode; the next key is typed in it again."""
        self._hint = ""
        self._port.show("")

    def _show_hint(self) -> None:
        self._hint = self._known_rest()
        if self._hint.strip():
            self._port.show(self._hint)
            self._ask(self._hint)

    def _known_rest(self) -> str:
        """Return the rest of the answer that is cached for this text, or the longest for an earlier one."""
        document = self._document
        if document in self._cache:
            return self._cache[document].rstrip("\n")
        best = ""
        for num in range(1, min(_TYPED_CHARS, len(document.before)) + 1):
            typed = document.before[-num:]
            text = self._cache.get(Document(document.uri, document.before[:-num], document.after), "")
            if text.startswith(typed) and len(text) - num > len(best):
                best = text[num:]
        return best.rstrip("\n")

    def _ask(self, shown: str) -> None:
        """Ask for the present text, or for what follows the shown text; later, if a request runs."""
        if self._is_asking:
            self._look_again_later(shown)
            return
        document = self._document.typed(shown)
        if len(document.line_after) > _MAX_LINE_SUFFIX or document in self._cache:
            return
        self._is_asking = True
        limit_s, trigger = (_NEXT_LIMIT_S, Trigger.PREFETCH) if shown else (_FIRST_LIMIT_S, Trigger.AUTOMATIC)
        answer = Answer(lambda text, reason: self._take(document, text, reason))
        self._port.send(Ask(document, trigger, Mode.MULTI_LINE, _MAX_TOKENS, limit_s), answer)

    def _look_again_later(self, shown: str) -> None:
        """Look again in a while, unless another look follows, or what is shown has changed."""
        self._num_looks += 1
        look, document = self._num_looks, self._document

        def look_again() -> None:
            if look == self._num_looks and (not shown or document == self._document):
                self._ask(shown)

        self._port.call_at(self._port.now_ms() + _LOOK_AGAIN_MS, look_again)

    def _take(self, document: Document, text: str, reason: str) -> None:
        """Take the end of the request, and show its text if nothing is shown."""
        self._is_asking = False
        if not is_whole(reason):
            return
        self._cache[document] = text
        if len(self._cache) > _CACHE_KEYS:
            self._cache.popitem(last=False)
        if not self._hint.strip():
            self._show_hint()
