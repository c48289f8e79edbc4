"""The open documents, as the editor has them: pygls' workspace with documents of our own.

Those of pygls count line ends that no editor counts, and put a position beyond the end of the last line one character
too far to the left.
"""

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from lsprotocol import types
from pygls.workspace import TextDocument, Workspace

from completion_lsp.positions import Lines, unix_lines


@dataclass(frozen=True, slots=True)
class Edit:
    """The replacement of a part of a document, in characters of the text before it."""

    start: int
    end: int
    text: str


class Document(TextDocument):
    """An open document or cell of a notebook."""

    def __init__(self, found: TextDocument, workspace: Workspace | None = None) -> None:
        """Hold what pygls read from the editor, of a workspace."""
        super().__init__(found.uri, found.source, found.version, found.language_id, position_codec=found.position_codec)
        self._text = found.source
        self._edits: list[Edit] = []
        self._workspace = workspace

    @property
    def folders(self) -> list[str]:
        """The URIs of the workspace's folders."""
        if self._workspace is None:
            return []
        folders = [each.uri for each in self._workspace.folders.values()]
        return folders or [self._workspace.root_uri or ""]

    @property
    def earlier_cells(self) -> str:
        """What runs before a cell of a notebook: the earlier cells of its language. "" for other documents."""
        notebook = self._workspace.get_notebook_document(cell_uri=self.uri) if self._workspace else None
        if self._workspace is None or notebook is None:
            return ""
        uris = [each.document for each in notebook.cells]
        earlier = uris[: uris.index(self.uri)] if self.uri in uris else []
        cells = (find(self._workspace, uri) for uri in earlier)
        texts = (each.source for each in cells if each is not None and each.language_id == self.language_id)
        return "".join(f"{text.rstrip()}\n\n" for text in map(unix_lines, texts))

    @property
    def source(self) -> str:
        """The text."""
        return self._text

    @cached_property
    def positions(self) -> Lines:
        """The positions in the text of this moment."""
        return Lines(self._text, self.position_codec.encoding or types.PositionEncodingKind.Utf16)

    def apply_change(self, change: types.TextDocumentContentChangeEvent) -> None:
        """Make a change of the editor."""
        start, end = 0, len(self._text)
        if isinstance(change, types.TextDocumentContentChangePartial):
            start, end = (self.positions.offset_at(at) for at in (change.range.start, change.range.end))
        edit = least_edit(self._text, Edit(start, end, change.text))
        self._text = self._text[: edit.start] + edit.text + self._text[edit.end :]
        self.__dict__.pop("positions", None)
        if edit.text or edit.start < edit.end:
            self._edits.append(edit)

    def take_edits(self) -> list[Edit]:
        """Return the edits since the last call, each in characters of the text after the one before."""
        edits, self._edits = self._edits, []
        return edits


def least_edit(text: str, edit: Edit) -> Edit:
    """Return an edit without what it leaves as it is: some editors replace a whole line, or the document."""
    old, new = text[edit.start : edit.end], edit.text
    num_before = _num_common(old, new)
    old, new = old[num_before:], new[num_before:]
    num_after = _num_common(old[::-1], new[::-1])
    return Edit(edit.start + num_before, edit.end - num_after, new[: len(new) - num_after])


def _num_common(one: str, other: str) -> int:
    """Return the length of the beginning that two texts share."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def adopt(workspace: Workspace) -> list[Document]:
    """Replace the documents that pygls has just made by ours, and return these."""
    made = [(uri, each) for uri, each in workspace.text_documents.items() if not isinstance(each, Document)]
    adopted = {uri: Document(each, workspace) for uri, each in made}
    workspace.text_documents.update(adopted)
    return list(adopted.values())


def find(workspace: Workspace, uri: str) -> Document | None:
    """Return an open document."""
    found = workspace.text_documents.get(unquote(uri))
    return found if isinstance(found, Document) else None
