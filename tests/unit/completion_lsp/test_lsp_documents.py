"""Documents as a workspace has them, and positions in three encodings, with line ends as editors count them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lsprotocol import types
from lsprotocol.types import Position, PositionEncodingKind
from pygls.workspace import Workspace

from completion_lsp.documents import Edit, adopt, find, least_edit
from completion_lsp.positions import Lines, num_units, prefix_of_units
from completion_lsp.settings import Settings
from tests.support.examples import examples

CELLS = (("python", "import os\r\n", ""), ("markdown", "Notes", ""), ("python", "y = 1", "import os\n\n"))
"""The language and the text of each cell, and the text of the earlier ones of its language."""
CODECS = {
    PositionEncodingKind.Utf8: ("utf-8", 1),
    PositionEncodingKind.Utf16: ("utf-16-le", 2),
    PositionEncodingKind.Utf32: ("utf-32-le", 4),
}
TEXTS = st.text(st.sampled_from("aé€😋\t\n\f\u2028"), max_size=20)


def test_the_earlier_cells_of_a_language_come_before_a_cell() -> None:
    uris = [f"notebook-cell:/project/n.ipynb#c{number}" for number in range(len(CELLS))]
    cells = [types.NotebookCell(types.NotebookCellKind.Code, uri) for uri in uris]
    notebook = types.NotebookDocument("file:///project/n.ipynb", "jupyter-notebook", 1, cells)
    items = [types.TextDocumentItem(uri, each[0], 1, each[1]) for uri, each in zip(uris, CELLS, strict=True)]
    workspace = Workspace("file:///project")
    workspace.put_notebook_document(types.DidOpenNotebookDocumentParams(notebook, items))
    workspace.put_text_document(types.TextDocumentItem("file:///project/a.py", "python", 1, "x"))
    adopt(workspace)
    found = [find(workspace, uri) for uri in (*uris, "file:///project/a.py")]
    assert [each and each.earlier_cells for each in found] == [*(earlier for *_, earlier in CELLS), ""]


@pytest.mark.parametrize("has_folders", [True, False], ids=["workspaceFolders", "rootUri"])
def test_names_above_the_workspace_keep_no_file_back(has_folders: bool) -> None:
    root = "file:///home/a/my%20secrets/secrets"
    folders = [types.WorkspaceFolder(root, "secrets")] if has_folders else None
    workspace = Workspace(root, workspace_folders=folders)
    for name in ("a.py", "secrets/a.py"):
        workspace.put_text_document(types.TextDocumentItem(f"{root}/{name}", "python", 1, "x"))
    reasons = [Settings().why_not(each.uri, each.language_id, each.folders) for each in adopt(workspace)]
    assert reasons == [None, "excluded by secrets, as files with secrets are"]


@given(TEXTS, st.sampled_from(list(CODECS)), st.data())
@settings(max_examples=examples(1))
def test_positions_are_those_of_the_encoded_line(
    text: str, encoding: PositionEncodingKind, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, len(text)))
    line = text.rfind("\n", 0, offset) + 1
    codec, width = CODECS[encoding]
    position = Position(text.count("\n", 0, offset), len(text[line:offset].encode(codec)) // width)
    lines = Lines(text, encoding)
    assert lines.position_at(offset) == position
    assert lines.offset_at(position) == offset


@pytest.mark.parametrize(
    ("text", "position", "offset"),
    [
        *(("a\r\nb\rc\nd\f\u2028e", Position(line, 0), at) for line, at in enumerate((0, 3, 5, 7, 11))),
        ("ab\r\nc", Position(0, 9), 2),
        ("ab\n", Position(1, 0), 3),
        ("ab\n", Position(7, 0), 3),
        ("", Position(0, 0), 0),
        ("😋b", Position(0, 1), 1),
    ],
)
def test_lines_end_as_editors_count_them_and_a_position_beyond_an_end_is_the_end(
    text: str, position: Position, offset: int
) -> None:
    assert Lines(text).offset_at(position) == offset


def test_half_a_character_from_an_editor_is_counted() -> None:
    assert num_units("\ud83d") == 1
    assert prefix_of_units("😋ab", 3) == "😋a"


@given(TEXTS, TEXTS, st.data())
@settings(max_examples=examples(1))
def test_the_least_edit_makes_the_same_text(text: str, new: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    edit = Edit(start, data.draw(st.integers(start, len(text))), new)
    least = least_edit(text, edit)
    assert text[: least.start] + least.text + text[least.end :] == text[:start] + new + text[edit.end :]
    if least.text and least.start < least.end:
        assert text[least.start] != least.text[0]
        assert text[least.end - 1] != least.text[-1]
