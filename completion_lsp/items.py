"""Offers as items of the protocol, and the editor's messages on them. Pure."""

import re
from typing import Any

from lsprotocol import types

from completion_lsp.cursor import Cursor
from completion_lsp.documents import Document
from completion_lsp.next_edits import OfferedEdit
from completion_lsp.offers import Offer

ACCEPT = "completion-lsp.accept"
"""The command that an item has the editor run after it was put in."""

_WORD_BEFORE = re.compile(r"\w*\Z")
_LABEL_CHARS = 60


def cursor_of(document: Document, params: types.InlineCompletionParams) -> Cursor:
    """Return where a request asks for text."""
    selected = params.context.selected_completion_info
    if selected is not None:
        start, end = (document.positions.offset_at(at) for at in (selected.range.start, selected.range.end))
        return Cursor(document, start, end, selected.text)
    return cursor_at(document, params.position)


def cursor_at(document: Document, position: types.Position) -> Cursor:
    """Return the cursor at a position."""
    at = document.positions.offset_at(position)
    return Cursor(document, at, at)


def inline_item(document: Document, offer: Offer) -> types.InlineCompletionItem:
    """Return an offer as an inline completion."""
    place = _range(document, offer.start, offer.end)
    return types.InlineCompletionItem(offer.text, range=place, command=_accept(offer))


def inline_edit(offered: OfferedEdit) -> dict[str, Any]:
    """Return an edit in the form of Copilot's server."""
    document, edit = offered.document, offered.edit
    lines = (edit.first, edit.first + edit.num_lines)
    start, end = (document.positions.offset_at(types.Position(line, 0)) for line in lines)
    return {
        "text": edit.text,
        "range": _range(document, start, end),
        "textDocument": types.VersionedTextDocumentIdentifier(offered.version, document.uri),
        "command": types.Command("Accept the edit", ACCEPT, arguments=[offered.token]),
    }


def menu_item(document: Document, offer: Offer) -> types.CompletionItem:
    """Return an offer as an item of a menu: it replaces the word before the cursor, by which editors filter."""
    found = _WORD_BEFORE.search(document.source, max(0, offer.start - _LABEL_CHARS), offer.start)
    word = found[0] if found else ""
    text = word + offer.text
    first, *others = text.strip().split("\n")
    label = first if len(first) <= _LABEL_CHARS and not others else f"{first[: _LABEL_CHARS - 1]}…"
    return types.CompletionItem(
        label,
        kind=types.CompletionItemKind.Snippet,
        detail="completion-lsp",
        documentation=text if others else None,
        sort_text="\t",
        filter_text=text.split("\n")[0] or label,
        preselect=True,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(_range(document, offer.start - len(word), offer.end), text),
        command=_accept(offer),
    )


def token_of(params: Any) -> str | None:  # noqa: ANN401 - JSON that the protocol does not define
    """Return the token of the offer that a message like Copilot's names by its item; None if there is none."""
    arguments = _get(_get(_get(params, "item"), "command"), "arguments")
    token = arguments[0] if isinstance(arguments, list) and arguments else None
    return token if isinstance(token, str) else None


def accepted_units_of(params: Any) -> int:  # noqa: ANN401 - JSON that the protocol does not define
    """Return how much of its item an editor accepted, in units of UTF-16 from the item's beginning."""
    found = _get(params, "acceptedLength")
    return found if isinstance(found, int) else 0


def edit_place_of(params: Any) -> tuple[types.Position, int | None] | None:  # noqa: ANN401 - as above
    """Return where a request for the next edit has the cursor, and the document's version; None if it is malformed."""
    position, version = _get(params, "position"), _get(_get(params, "textDocument"), "version")
    line, character = _get(position, "line"), _get(position, "character")
    if not isinstance(line, int) or not isinstance(character, int):
        return None
    return types.Position(line, character), version if isinstance(version, int) else None


def uri_of(params: Any) -> str | None:  # noqa: ANN401 - JSON that the protocol does not define
    """Return the URI of the document that a message names; None if there is none."""
    found = _get(_get(params, "textDocument"), "uri")
    return found if isinstance(found, str) else None


def _range(document: Document, start: int, end: int) -> types.Range:
    return types.Range(document.positions.position_at(start), document.positions.position_at(end))


def _accept(offer: Offer) -> types.Command:
    return types.Command("Accept the completion", ACCEPT, arguments=[offer.token])


def _get(holder: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    return holder.get(name) if isinstance(holder, dict) else None
