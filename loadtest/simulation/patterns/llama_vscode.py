"""The client llama.vscode (ggml-org, MIT), as far as its requests and its ghost text go.

Read in its source of 2025 and 2026: VS Code asks it at each change of the text and cancels the older question. One
question at a time is answered; while one is, a newer one looks again every 150 ms unless VS Code has cancelled it. What
the cache has, up to the line's start typed along, is shown without a request. A request is not cancelled. Nothing is
asked with more than 8 characters behind the cursor on its line. After an answer that is shown it asks what follows it,
at once, unless its cache has that.

Assumed: t_max_predict_ms 500 and n_predict 128 (their defaults of 2026), one completion of a request and not the three
that newer versions ask for, no extra context of other places, VS Code's debounce 50 ms.
"""

from collections import OrderedDict

from completion_client.editing import Change, Mode, Trigger
from loadtest.simulation.patterns.port import Answer, Ask, Client, Document, Port, is_whole

_DEBOUNCE_MS = 50
_LOOK_AGAIN_MS = 150
_MAX_TOKENS = 128
_LIMIT_S = 0.5
_MAX_LINE_SUFFIX = 8
_CACHE_KEYS = 250


class LlamaVscode(Client):
    """Answers one question at a time."""

    def __init__(self, port: Port) -> None:
        """Begin without a document."""
        self._port = port
        self._document = Document("", "", "")
        self._cache: OrderedDict[Document, str] = OrderedDict()
        self._is_asking = False
        self._question = 0

    def changed(self, document: Document, _change: Change) -> None:
        """See Client."""
        self._document = document
        self._question += 1
        question = self._question
        self._port.show("")
        rest = self._known_rest()
        if rest:  # VS Code goes on showing what is typed along.
            self._port.show(rest)
        self._port.call_at(self._port.now_ms() + _DEBOUNCE_MS, lambda: self._answer(question))

    def moved(self, document: Document) -> None:
        """See Client. VS Code asks nothing for a move."""
        self._document = document
        self._question += 1
        self._port.show("")

    def accepted(self, document: Document, _inserted: str) -> None:
        """See Client."""
        self.changed(document, Change.OTHER)

    def rejected(self) -> None:
        """See Client."""
        self._port.show("")

    def _answer(self, question: int) -> None:
        """Answer VS Code's question, unless it has cancelled it."""
        if question != self._question:
            return
        if self._is_asking:
            self._port.call_at(self._port.now_ms() + _LOOK_AGAIN_MS, lambda: self._answer(question))
            return
        document = self._document
        if len(document.line_after) > _MAX_LINE_SUFFIX:
            return
        rest = self._known_rest()
        if rest:
            self._present(document, rest)
            return
        self._is_asking = True

        def on_end(text: str, reason: str) -> None:
            self._is_asking = False
            text = text.rstrip("\n")
            if not is_whole(reason) or not text.strip():
                return
            self._put(document, text)
            if question == self._question:
                self._present(document, text)

        self._send(document, Trigger.AUTOMATIC, Answer(on_end))

    def _present(self, document: Document, text: str) -> None:
        self._port.show(text)
        following = document.typed(text)
        if document.line_after.strip() or following in self._cache:
            return

        def on_end(text: str, reason: str) -> None:
            if is_whole(reason) and text.strip():
                self._put(following, text.rstrip("\n"))

        self._send(following, Trigger.PREFETCH, Answer(on_end))

    def _known_rest(self) -> str:
        document = self._document
        line = document.before.rpartition("\n")[2]
        for num in range(len(line) + 1):
            typed = line[len(line) - num :]
            before = document.before[: len(document.before) - num]
            text = self._cache.get(Document(document.uri, before, document.after), "")
            if text.startswith(typed) and text[num:].strip():
                return text[num:]
        return ""

    def _put(self, document: Document, text: str) -> None:
        self._cache[document] = text
        if len(self._cache) > _CACHE_KEYS:
            self._cache.popitem(last=False)

    def _send(self, document: Document, trigger: Trigger, answer: Answer) -> None:
        self._port.send(Ask(document, trigger, Mode.MULTI_LINE, _MAX_TOKENS, _LIMIT_S), answer)
