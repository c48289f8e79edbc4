"""Requests for next edits, answers as the models write them, and what an editor does with an edit."""

import difflib
import re
from typing import Any

from completion_server.core.next_edit import Edit, NextEdit, RecentEdit
from completion_server.core.request import Caller, Mode, Request, Snippet
from completion_server.engine.scripted.edit_model import edit_script
from completion_server.engine.scripted.engine import Script
from completion_server.text.prompt.edits.region import Region
from completion_server.text.prompt.edits.template import EditTemplate
from completion_server.text.prompt.edits.zeta import Zeta21, block_starts
from tests.support.vocabularies import embedded

CURSOR = "‸"
URI = "file:///home/ada/project/src/app/a.py"
_BREAK = re.compile(r"\r\n|\r|\n")


def edit_model(otherwise: Script) -> Script:
    """Return a script that writes next edits, and what another one writes for any other prompt."""
    return edit_script(lambda token_ids: embedded().decode(list(token_ids), skip_special_tokens=False), otherwise)


def diff_of(old: str, new: str) -> str:
    """Return the hunks between two texts, as an editor sends them."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="")
    return "".join(f"{line}\n" for line in list(lines)[2:])


def recent_edit(old: str, new: str, uri: str = URI) -> RecentEdit:
    return RecentEdit(uri, diff_of(old, new))


def request_at(
    document: str,
    *edits: RecentEdit,
    snippets: tuple[Snippet, ...] = (),
    max_tokens: int = 512,
    version: int = 7,
    **asked: Any,
) -> Request:
    """Return a request for the next edit of a document with its cursor marked."""
    prefix, _, suffix = document.partition(CURSOR)
    return Request(
        id="r1",
        caller=Caller("ada", "s1"),
        sequence=1,
        document_uri=URI,
        language_id="python",
        prefix=prefix,
        suffix=suffix,
        max_tokens=max_tokens,
        received_at=0.0,
        snippets=snippets,
        mode=Mode.NEXT_EDIT,
        next_edit=NextEdit(version, edits, **asked),
    )


def whole_lines(text: str) -> list[str]:
    """Return the lines of a text with their breaks; the last one has none."""
    lines, begin = [], 0
    for found in _BREAK.finditer(text):
        lines.append(text[begin : found.end()])
        begin = found.end()
    return [*lines, text[begin:]]


def applied(prefix: str, suffix: str, edit: Edit | Any) -> str:
    """Return a document after an edit, as an editor makes it."""
    lines = whole_lines(prefix + suffix)
    first = len(whole_lines(prefix)) - 1 + edit.first_line
    assert 0 <= first <= first + edit.line_count <= len(lines), "the edit is not in the document"
    return "".join(lines[:first]) + edit.text + "".join(lines[first + edit.line_count :])


def answer_of(template: EditTemplate, region: Region, text: str) -> str:
    """Return what a model answers that wants a region to have a text."""
    if isinstance(template, Zeta21):
        bounds = [0, *block_starts(region.text), len(region.text)]
        return f"<|marker_1|>{text}<|marker_{len(bounds)}|><[end▁of▁sentence]>"
    if template.name == "zeta-2":
        return f"{text}\n>>>>>>> UPDATED\n"
    if template.name == "sweep":
        return f"\n{text}\n<|file_sep|>"
    return f"{text}\n<|editable_region_end|>"
