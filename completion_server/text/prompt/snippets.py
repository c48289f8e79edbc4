"""Renders snippets of other files before the edited text: as files if the family knows files, else as comments."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from completion_server.core.languages import UNKNOWN, language_of
from completion_server.core.request import Snippet
from completion_server.text.prompt.templates import PathAt, Template
from completion_server.text.prompt.tokens.reuse import Encoded
from completion_server.text.prompt.window import cut_to_lines, first_lines

_PATH_PARTS = 3
_MIN_LINES = 2
_CHARACTERS_A_TOKEN = 8
_LINE_COMMENTS = frozenset({"#", "--", "//", ";", "%", "!", "'", '"'})
"""Characters that open a comment without an end mark."""

Encode = Callable[[str], Encoded]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Snippets in the form that the prompt shows."""

    ids: "array[int]"
    """Tokens before the first marker."""
    lead: str
    """Text at the start of the prefix."""
    num_tokens: int
    """Tokens of both; the lead is counted as if it were tokenised alone."""
    sources: frozenset[int] = frozenset()
    """The `source` of each rendered snippet."""


NOTHING = Rendered(array("I"), "", 0)


def source(snippet: Snippet) -> int:
    """Return a hash of a snippet's origin: of its URI, or of its text if it has none."""
    return hash(snippet.uri or snippet.text)


def short_path(uri: str) -> str:
    """Return the last parts of a URI's path on one line; of a URI that does not parse, the last parts of all of it."""
    try:
        path = urlsplit(uri).path or uri
    except ValueError:  # such as square brackets that hold no IPv6 address
        path = uri
    path = unquote(path)
    return " ".join("/".join([part for part in path.split("/") if part][-_PATH_PARTS:]).split())


def comment_leader(language_id: str) -> str:
    """Return the characters that open a line comment; languages have the Language Server Protocol's names."""
    language = language_of(language_id, "", "")
    leaders = () if language is UNKNOWN else map(str.strip, language.syntax.comments)
    return next((each for each in leaders if each in _LINE_COMMENTS), "//")


class SnippetRenderer:
    """Renders snippets for one template."""

    def __init__(self, template: Template, file_id: int | None) -> None:
        """`file_id` is the id of the template's file marker, if it has one."""
        self._template = template
        self._file_id = file_id

    def render(self, snippets: Sequence[Snippet], uri: str, language_id: str, budget: int, encode: Encode) -> Rendered:
        """Return the best snippets that fit into `budget` tokens; the best one stands last, next to the edited text."""
        closing = self._closing(uri)
        left = budget - self._cost(encode(closing))
        chosen: list[str] = []
        sources: set[int] = set()
        for snippet in sorted(snippets, key=lambda snippet: -snippet.score):
            encoded = encode(self._render_one(snippet, language_id, left))
            end = cut_to_lines(encoded, left - self._cost(None))
            text = encoded.text[:end]
            if text.count("\n") < _MIN_LINES:
                break
            chosen.append(text)
            sources.add(source(snippet))
            left -= self._cost(encode(text))
        if not chosen:
            return NOTHING
        return replace(self._put_together(chosen[::-1], closing, encode), sources=frozenset(sources))

    def _cost(self, encoded: Encoded | None) -> int:
        return (len(encoded.ids) if encoded else 0) + (self._file_id is not None)

    def _render_one(self, snippet: Snippet, language_id: str, budget: int) -> str:
        text = first_lines(snippet.text, max(0, budget) * _CHARACTERS_A_TOKEN).rstrip("\r\n") + "\n"
        path = short_path(snippet.uri)
        if self._template.file:
            return text if self._template.path_at is PathAt.NOWHERE else f"{path}\n{text}"
        if self._template.text_header:
            return self._template.text_header.replace("{path}", path) + text
        leader = comment_leader(language_id)
        return "".join(f"{leader} {line}".rstrip() + "\n" for line in (f"{path}:", *text.splitlines()))

    def _closing(self, uri: str) -> str:
        """Return the text that names the file being edited."""
        if self._template.file:
            return "" if self._template.path_at is PathAt.NOWHERE else f"{short_path(uri)}\n"
        return self._template.text_header.replace("{path}", short_path(uri))

    def _put_together(self, texts: list[str], closing: str, encode: Encode) -> Rendered:
        if self._file_id is None:
            lead = "".join([*texts, closing])
            return Rendered(array("I"), lead, len(encode(lead).ids))
        ids = array("I")
        for text in texts:
            ids.append(self._file_id)
            ids += encode(text).ids
        if self._template.path_at is PathAt.NOWHERE:
            return Rendered(ids, "", len(ids))
        ids.append(self._file_id)
        if self._template.path_at is PathAt.INSIDE:
            return Rendered(ids, closing, len(ids) + len(encode(closing).ids))
        ids += encode(closing).ids
        return Rendered(ids, "", len(ids))
