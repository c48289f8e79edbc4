"""The language server: the protocol's messages to and from the completer.

pygls calls a handler that is no coroutine function before it reads the next message, and begins with the others before
it reads the next one. So a request sees the document as it was when the editor sent it.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from lsprotocol.converters import get_converter
from pygls.lsp.server import LanguageServer

from completion_lsp import __version__, items
from completion_lsp.completer import Completer
from completion_lsp.documents import Document, adopt, find
from completion_lsp.link import Link, Servers
from completion_lsp.next_edits import NextEdits
from completion_lsp.settings import SECTION, Settings, section_of, updated

if TYPE_CHECKING:
    from pygls.server import ServerErrors

_log = logging.getLogger(__name__)

_NOTEBOOKS = types.NotebookDocumentSyncOptions([types.NotebookDocumentFilterWithNotebook(notebook="*")], save=False)
_SENDS_KEYS_TOGETHER = ("Neovim",)
"""Clients that send the keys of a short time as one change, so that an insertion tells nothing about an acceptance."""


class CompletionLanguageServer(LanguageServer):
    """One editor's language server; `start_io` runs it."""

    def __init__(self, servers: Servers) -> None:
        """Ask the best of the completion servers."""
        super().__init__(
            "completion-lsp", __version__, notebook_document_sync=_NOTEBOOKS, converter_factory=get_converter
        )
        self.settings = Settings()
        self._initial: dict[str, Any] = {}
        self._problems: list[str] = []
        """What is wrong with the settings, as the user was told."""
        self.link = Link(servers)
        self.link.on_refused = self.warn
        self.completer = Completer(self.link.session, self.settings)
        self.next_edits = NextEdits(self.link.session, self.settings, self.completer.snippets)
        self.completer.on_busy = self.next_edits.busy
        self.link.listeners += [self.completer, self.next_edits]
        for name, handler in _FEATURES.items():
            self.feature(name)(handler)
        self.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())(_inline_completion)
        self.command(items.ACCEPT)(_accept)

    def document(self, uri: str) -> Document | None:
        """Return an open document."""
        return find(self.workspace, uri)

    def take_edits(self, uri: str) -> None:
        """Tell of what the editor changed in a document."""
        if document := self.document(uri):
            edits = document.take_edits()
            self.next_edits.changed(document, edits)
            self.completer.changed(document, edits)

    def close(self, uri: str) -> None:
        """Tell of a document that was closed."""
        self.next_edits.closed(uri)
        self.completer.closed(uri)

    def report_server_error(self, error: Exception, source: "ServerErrors") -> None:
        """Log the kind of an error. Its text may contain code, which is neither logged nor shown."""
        _log.error("%s: %s", source.__name__, type(error).__name__)

    def warn(self, message: str) -> None:
        """Show the user a message."""
        self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, f"completion-lsp: {message}"))

    def begin_with(self, given: Any) -> None:  # noqa: ANN401 - JSON
        """Use the settings that the editor starts with, which later ones change."""
        self._initial = section_of(given)
        self.use(None)

    def use(self, given: Any) -> None:  # noqa: ANN401 - JSON
        """Change the initial settings by those of the editor's configuration; tell the user of what is wrong in it."""
        settings, problems = updated(Settings(), self._initial | section_of(given))
        if new := [each for each in problems if each not in self._problems]:
            self.warn("; ".join(new))
        self._problems = problems
        if settings != self.settings:
            self.settings = settings
            self.completer.use(settings)
            self.next_edits.use(settings)
            for document in self.workspace.text_documents.values():
                if isinstance(document, Document):
                    self.next_edits.opened(document)


def _initialize(ls: CompletionLanguageServer, params: types.InitializeParams) -> None:
    client, document = params.client_info, params.capabilities.text_document
    if client is not None:
        _log.info("the editor is %s %s", client.name, client.version or "")
        ls.completer.infers_acceptance = client.name not in _SENDS_KEYS_TOGETHER
    ls.begin_with(params.initialization_options)
    if document is None or document.inline_completion is None:
        ls.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions())(_completion)


async def _initialized(ls: CompletionLanguageServer, _params: types.InitializedParams) -> None:
    asyncio.get_running_loop().set_exception_handler(_log_kind)
    ls.link.start_nowait()
    await _pull_configuration(ls)


async def _shut_down(ls: CompletionLanguageServer, _params: None) -> None:
    await ls.link.aclose()


async def _configuration_changed(ls: CompletionLanguageServer, params: types.DidChangeConfigurationParams) -> None:
    if isinstance(params.settings, dict) and SECTION in params.settings:
        ls.use(params.settings)
    else:
        await _pull_configuration(ls)


async def _pull_configuration(ls: CompletionLanguageServer) -> None:
    workspace = ls.client_capabilities.workspace
    if workspace is None or not workspace.configuration:
        return
    wanted = types.ConfigurationParams([types.ConfigurationItem(section=SECTION)])
    found = await ls.workspace_configuration_async(wanted)
    if found:
        ls.use(found[0])


def _log_kind(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what failed in the event loop, and where, without the error's text."""
    error = context.get("exception")
    frames = traceback.extract_tb(error.__traceback__) if error else []
    where = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    _log.error("%s: %s%s", context["message"], type(error).__name__, where)


def _opened(
    ls: CompletionLanguageServer, _params: types.DidOpenTextDocumentParams | types.DidOpenNotebookDocumentParams | None
) -> None:
    for document in adopt(ls.workspace):
        ls.next_edits.opened(document)
        if reason := ls.settings.why_not(document.uri, document.language_id, document.folders):
            _log.info("%s is not completed: %s", document.filename, reason)


def _changed(ls: CompletionLanguageServer, params: types.DidChangeTextDocumentParams) -> None:
    ls.take_edits(params.text_document.uri)


def _closed(ls: CompletionLanguageServer, params: types.DidCloseTextDocumentParams) -> None:
    ls.close(params.text_document.uri)


def _notebook_changed(ls: CompletionLanguageServer, params: types.DidChangeNotebookDocumentParams) -> None:
    _opened(ls, None)
    cells = params.change.cells
    for cell in (cells and cells.structure and cells.structure.did_close) or ():
        ls.close(cell.uri)
    for change in (cells and cells.text_content) or ():
        ls.take_edits(change.document.uri)


def _notebook_closed(ls: CompletionLanguageServer, params: types.DidCloseNotebookDocumentParams) -> None:
    for cell in params.cell_text_documents:
        ls.close(cell.uri)


async def _inline_completion(
    ls: CompletionLanguageServer, params: types.InlineCompletionParams
) -> types.InlineCompletionList | None:
    document = ls.document(params.text_document.uri)
    if document is None:
        return None
    is_explicit = params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
    offered = await ls.completer.complete(items.cursor_of(document, params), is_explicit=is_explicit)
    if offered is None:
        return None
    return types.InlineCompletionList([items.inline_item(document, each) for each in offered])


async def _completion(ls: CompletionLanguageServer, params: types.CompletionParams) -> types.CompletionList | None:
    document = ls.document(params.text_document.uri)
    if document is None:
        return None
    offered = await ls.completer.complete(items.cursor_at(document, params.position))
    if offered is None:
        return None
    return types.CompletionList(is_incomplete=True, items=[items.menu_item(document, each) for each in offered])


async def _inline_edit(ls: CompletionLanguageServer, params: Any) -> dict[str, Any]:  # noqa: ANN401 - as below
    document, place = ls.document(items.uri_of(params) or ""), items.edit_place_of(params)
    if document is None or place is None:
        return {"edits": []}
    position, version = place
    offered = await ls.next_edits.edit_at(items.cursor_at(document, position), version)
    return {"edits": [items.inline_edit(offered)] if offered else []}


def _accept(ls: CompletionLanguageServer, token: str) -> None:
    ls.completer.accepted(token)
    ls.next_edits.accepted(token)


def _did_show(ls: CompletionLanguageServer, params: Any) -> None:  # noqa: ANN401 - not defined by the protocol
    if token := items.token_of(params):
        ls.completer.drawn(token)


def _did_show_edit(ls: CompletionLanguageServer, params: Any) -> None:  # noqa: ANN401 - as above
    if token := items.token_of(params):
        ls.next_edits.drawn(token)


def _did_partially_accept(ls: CompletionLanguageServer, params: Any) -> None:  # noqa: ANN401 - as above
    if token := items.token_of(params):
        ls.completer.accepted_units(token, items.accepted_units_of(params))


def _did_focus(ls: CompletionLanguageServer, params: Any) -> None:  # noqa: ANN401 - as above
    if uri := items.uri_of(params):
        ls.completer.focused(uri)


_FEATURES: dict[str, Callable[..., Any]] = {
    types.INITIALIZE: _initialize,
    types.INITIALIZED: _initialized,
    types.SHUTDOWN: _shut_down,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: _configuration_changed,
    types.TEXT_DOCUMENT_DID_OPEN: _opened,
    types.TEXT_DOCUMENT_DID_CHANGE: _changed,
    types.TEXT_DOCUMENT_DID_CLOSE: _closed,
    types.NOTEBOOK_DOCUMENT_DID_OPEN: _opened,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE: _notebook_changed,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE: _notebook_closed,
    "textDocument/didShowCompletion": _did_show,
    "textDocument/didPartiallyAcceptCompletion": _did_partially_accept,
    "textDocument/didFocus": _did_focus,
    "textDocument/copilotInlineEdit": _inline_edit,
    "textDocument/didShowInlineEdit": _did_show_edit,
}
