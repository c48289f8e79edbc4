"""Documents as a workspace has them: the cells of notebooks, and the folders that files are in."""

import pytest
from lsprotocol import types
from pygls.workspace import Workspace

from completion_lsp.documents import Document, adopt, find
from completion_lsp.settings import Settings

CELLS = (("python", "import os\r\n"), ("markdown", "Notes"), ("python", "y = 1"), ("python", "later"))


def uri_of(number: int) -> str:
    return f"notebook-cell:/project/n.ipynb#c{number}"


@pytest.fixture
def workspace() -> Workspace:
    """Return a workspace with a notebook of CELLS."""
    found = Workspace("file:///project", workspace_folders=[types.WorkspaceFolder("file:///project", "project")])
    kinds = [types.NotebookCell(types.NotebookCellKind.Code, uri_of(i)) for i in range(len(CELLS))]
    notebook = types.NotebookDocument("file:///project/n.ipynb", "jupyter-notebook", 1, kinds)
    items = [types.TextDocumentItem(uri_of(i), language, 1, text) for i, (language, text) in enumerate(CELLS)]
    found.put_notebook_document(types.DidOpenNotebookDocumentParams(notebook, items))
    adopt(found)
    return found


def document(workspace: Workspace, uri: str) -> Document:
    found = find(workspace, uri)
    assert found is not None
    return found


@pytest.mark.parametrize(("number", "earlier"), [(0, ""), (2, "import os\n\n"), (3, "import os\n\ny = 1\n\n")])
def test_the_earlier_cells_of_a_language_come_before_a_cell(workspace: Workspace, number: int, earlier: str) -> None:
    assert document(workspace, uri_of(number)).earlier_cells == earlier


def test_a_file_has_no_earlier_cells(workspace: Workspace) -> None:
    workspace.put_text_document(types.TextDocumentItem("file:///project/a.py", "python", 1, "x"))
    adopt(workspace)
    assert document(workspace, "file:///project/a.py").earlier_cells == ""


@pytest.mark.parametrize("has_folders", [True, False], ids=["workspaceFolders", "rootUri"])
def test_names_above_the_workspace_keep_no_file_back(has_folders: bool) -> None:
    root = "file:///home/a/my%20secrets/secrets"
    folders = [types.WorkspaceFolder(root, "secrets")] if has_folders else None
    workspace = Workspace(root, workspace_folders=folders)
    for name in ("a.py", "secrets/a.py"):
        workspace.put_text_document(types.TextDocumentItem(f"{root}/{name}", "python", 1, "x"))
    adopted = adopt(workspace)
    reasons = [Settings().why_not(each.uri, each.language_id, each.folders) for each in adopted]
    assert reasons == [None, "excluded by secrets, as files with secrets are"]
