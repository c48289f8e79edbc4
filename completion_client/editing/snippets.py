"""Snippets: text of recent places that a request sends along, ranked, within a budget. Pure.

A chunk of lines is remembered when the user leaves a place. The choice for a request stays as long as it can, because
every change of it makes the server compute the prompt anew.
"""

import re
from collections import deque
from dataclasses import dataclass

from completion_client.editing.messages import Text
from completion_client.editing.settings import SnippetSettings

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]+")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
"""Lines end with "\\n" alone, as in other languages; `str.splitlines` knows further ends."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Text of another place, as in the contract."""

    uri: str
    text: str
    score: float
    """Share of words in common with the text around the cursor, 0 to 1."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    uri: str
    text: str
    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Choice:
    uri: str
    line: int
    version: int
    snippets: tuple[Snippet, ...]


class SnippetRing:
    """The chunks of recent places; the oldest one is forgotten first."""

    def __init__(self, settings: SnippetSettings | None = None) -> None:
        """Begin without a chunk."""
        self.settings = settings or SnippetSettings()
        self._chunks: deque[_Chunk] = deque(maxlen=self.settings.num_chunks)
        self._version = 0
        """Counts the changes of the chunks."""
        self._choice: _Choice | None = None

    def leave(self, text: Text) -> None:
        """Remember the lines around a place that the user leaves, in place of a chunk that is nearly the same."""
        half = self.settings.chunk_lines // 2
        before = _LINE.findall(text.before)[-half:]
        after = _LINE.findall(text.after)[: self.settings.chunk_lines - half]
        content = "".join((*before, *after))
        words = _words(content)
        if not words:
            return
        kept = [each for each in self._chunks if not self._is_nearly(each, text.uri, words)]
        self._chunks = deque((*kept, _Chunk(text.uri, content, words)), self.settings.num_chunks)
        self._version += 1

    def close(self, uri: str) -> None:
        """Forget the chunks of a document, which was closed or may not be sent."""
        kept = [each for each in self._chunks if each.uri != uri]
        if len(kept) < len(self._chunks):
            self._chunks = deque(kept, self.settings.num_chunks)
            self._version += 1

    def choose(self, text: Text) -> tuple[Snippet, ...]:
        """Return the snippets for a request, the best first: chunks of other documents with words in common."""
        line = text.before.count("\n")
        choice = self._choice
        if (
            choice is None
            or (choice.uri, choice.version) != (text.uri, self._version)
            or abs(line - choice.line) >= self.settings.keep_lines
        ):
            choice = self._choice = _Choice(text.uri, line, self._version, self._best(text))
        return choice.snippets

    def _best(self, text: Text) -> tuple[Snippet, ...]:
        words = _words("".join(_LINE.findall(text.before)[-self.settings.window_lines :]))
        newest_first = [
            Snippet(each.uri, each.text, _share(words, each.words))
            for each in reversed(self._chunks)
            if each.uri != text.uri
        ]
        found: list[Snippet] = []
        left_chars = self.settings.budget_chars
        for each in sorted(newest_first, key=lambda snippet: -snippet.score):
            if each.score >= self.settings.min_score and len(each.text) <= left_chars:
                found.append(each)
                left_chars -= len(each.text)
        return tuple(found)

    def _is_nearly(self, chunk: _Chunk, uri: str, words: frozenset[str]) -> bool:
        return chunk.uri == uri and _share(chunk.words, words) >= self.settings.same_share


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard index of two sets of words."""
    union = len(one | other)
    return len(one & other) / union if union else 0.0
