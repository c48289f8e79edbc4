"""A user who types, accepts, deletes, undoes and pastes at random: text is never doubled, lost or stale."""

import itertools
import re
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.support.background import Background, background_loop
from tests.support.examples import examples
from tests.support.oracle_server import LINE, OracleServer, answer, run_oracle

PIECES = st.sampled_from(("a", "q", "(", "😋", "é", "\t", "\f", "\n", " ", "<"))
PASTES = st.sampled_from(("alpha(b", "x = 1\ny = '😋'\n", "\u2028", LINE))
CLOSERS = {"(": ")", "[": "]"}
WORD = re.compile(r"\s*\w+|\s*\W")
T = TypeVar("T")
_numbers = itertools.count(1)


class Editor:
    """A language client with a document, as an editor has it."""

    def __init__(self, client: LanguageClient, encoding: types.PositionEncodingKind, eol: str) -> None:
        self._client = client
        self._encoding = encoding
        self._eol = eol
        self._document = types.TextDocumentItem(f"file:///project/{next(_numbers)}.py", "python", 1, "")
        self.text = ""
        self.cursor = 0
        self.history: list[tuple[str, int]] = []
        self.states: set[tuple[str, str]] = set()
        """What was on both sides of the cursor when the bridge was told or asked something."""
        client.text_document_did_open(types.DidOpenTextDocumentParams(self._document))

    @property
    def uri(self) -> str:
        return self._document.uri

    @property
    def before(self) -> str:
        return self.text[: self.cursor].replace("\r\n", "\n")

    @property
    def after(self) -> str:
        return self.text[self.cursor :].replace("\r\n", "\n")

    def put(self, start: int, end: int, text: str, cursor: int | None = None) -> None:
        """Replace a part of the document; the cursor goes behind it, or so many characters back from there."""
        self.history.append((self.text, self.cursor))
        text = text.replace("\n", self._eol)
        place = types.Range(self.position(start), self.position(end))
        self._send(types.TextDocumentContentChangePartial(range=place, text=text))
        self.text = self.text[:start] + text + self.text[end:]
        self.cursor = start + len(text) - (cursor or 0)
        self.states.add((self.before, self.after))

    def undo(self) -> None:
        self.text, self.cursor = self.history.pop()
        self._send(types.TextDocumentContentChangeWholeDocument(text=self.text))

    def move(self, share: float) -> None:
        """Go elsewhere, but not between the characters of a line's end."""
        at = int(share * len(self.text))
        self.cursor = at - (self.text[at - 1 : at + 1] == "\r\n")

    def position(self, offset: int) -> types.Position:
        start = self.text.rfind("\n", 0, offset) + 1
        return types.Position(self.text.count("\n", 0, offset), self._num_units(self.text[start:offset]))

    def offset(self, position: types.Position) -> int:
        (found,) = (at for at in range(len(self.text) + 1) if self.position(at) == position)
        return found

    async def ask(self, *, is_explicit: bool) -> types.InlineCompletionItem | None:
        kinds = types.InlineCompletionTriggerKind
        context = types.InlineCompletionContext(kinds.Invoked if is_explicit else kinds.Automatic)
        identifier = types.TextDocumentIdentifier(self.uri)
        self.states.add((self.before, self.after))
        params = types.InlineCompletionParams(context, identifier, self.position(self.cursor))
        found = await self._client.text_document_inline_completion_async(params)
        assert isinstance(found, types.InlineCompletionList), "the answer was ended, though nothing came after it"
        return found.items[0] if found.items else None

    def accept_part(self, item: types.InlineCompletionItem, num_characters: int) -> None:
        units = len(str(item.insert_text)[:num_characters].encode("utf-16-le")) // 2
        message = {"item": {"command": {"arguments": item.command.arguments}}, "acceptedLength": units}
        self._client.protocol.notify("textDocument/didPartiallyAcceptCompletion", message)

    async def run_command(self, item: types.InlineCompletionItem) -> None:
        params = types.ExecuteCommandParams(item.command.command, item.command.arguments)
        await self._client.workspace_execute_command_async(params)

    def _send(self, change: types.TextDocumentContentChangeEvent) -> None:
        self._document.version += 1
        identifier = types.VersionedTextDocumentIdentifier(self._document.version, self.uri)
        self._client.text_document_did_change(types.DidChangeTextDocumentParams(identifier, [change]))

    def _num_units(self, text: str) -> int:
        if self._encoding == types.PositionEncodingKind.Utf32:
            return len(text)
        width = {types.PositionEncodingKind.Utf8: 1, types.PositionEncodingKind.Utf16: 2}[self._encoding]
        return len(text.encode("utf-8" if width == 1 else "utf-16-le")) // width


def is_right(editor: Editor, text: str, replaced: str) -> bool:
    """Tell whether a text is the answer at the cursor, or what is left of one of which the rest was typed since."""
    before, after = editor.before, editor.after[len(replaced) :]
    possible = (answer(before[: len(before) - num], after) for num in range(min(len(before), len(LINE)) + 1))
    return any(before[len(before) - num :] + text == each for num, each in enumerate(possible))


class Machine(RuleBasedStateMachine):
    """What a user may do, one after another."""

    background: Background
    client: LanguageClient
    oracle: OracleServer
    encoding: types.PositionEncodingKind

    def __init__(self) -> None:
        super().__init__()
        eol = "\r\n" if next(_numbers) % 2 else "\n"
        self.editor = self.do(self._open(eol))
        self.shown: types.InlineCompletionItem | None = None

    async def _open(self, eol: str) -> Editor:
        return Editor(self.client, self.encoding, eol)

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.background.run(coroutine)

    def put(self, start: int, end: int, text: str, cursor: int | None = None) -> None:
        async def put() -> None:
            self.editor.put(start, end, text, cursor)

        self.do(put())
        self.shown = None

    @rule(text=PIECES)
    def type(self, text: str) -> None:
        self.put(self.editor.cursor, self.editor.cursor, text)

    @rule(num=st.integers(1, 6))
    def type_the_line(self, num: int) -> None:
        for character in self.rest_of_line()[:num]:
            self.type(character)

    def rest_of_line(self) -> str:
        line = self.editor.before.rpartition("\n")[2]
        return LINE.removeprefix(line)

    @rule(asks_before=st.booleans())
    def type_up_to_a_bracket_that_the_editor_closes(self, asks_before: bool) -> None:
        rest = self.rest_of_line()
        at = min((rest.find(each) for each in CLOSERS if each in rest), default=None)
        if at is None:
            return
        before, bracket = rest[:at], rest[at]
        self.put(self.editor.cursor, self.editor.cursor, before)
        if asks_before:
            self.ask(is_explicit=False)
        self.put(self.editor.cursor, self.editor.cursor, bracket + CLOSERS[bracket], 1)

    @rule(text=PASTES)
    def paste(self, text: str) -> None:
        self.put(self.editor.cursor, self.editor.cursor, text)

    @rule(num=st.integers(1, 4))
    def delete(self, num: int) -> None:
        start = max(0, self.editor.cursor - num)
        start -= self.editor.text[start - 1 : start + 1] == "\r\n"
        self.put(start, self.editor.cursor, "")

    @precondition(lambda self: self.editor.history)
    @rule()
    def undo(self) -> None:
        async def undo() -> None:
            self.editor.undo()

        self.do(undo())
        self.shown = None

    @rule(share=st.floats(0, 1))
    def move(self, share: float) -> None:
        self.editor.move(share)
        self.shown = None

    @rule(is_explicit=st.booleans())
    def ask(self, is_explicit: bool) -> None:
        editor, num_requests = self.editor, self.oracle.num_requests
        self.shown = self.do(editor.ask(is_explicit=is_explicit))
        if self.oracle.num_requests > num_requests:
            assert self.sent() in editor.states, "the editor never had this text"
        if self.shown is not None:
            place = self.shown.range
            assert editor.offset(place.start) == editor.cursor
            replaced = editor.text[editor.cursor : editor.offset(place.end)]
            assert set(replaced) <= set(")]}>\"'`")
            assert is_right(editor, str(self.shown.insert_text), replaced), (editor.before, self.shown.insert_text)

    def sent(self) -> tuple[str, str]:
        newest = self.oracle.newest
        return newest.prefix, newest.suffix

    @precondition(lambda self: self.shown is not None)
    @rule()
    def accept(self) -> None:
        editor, item = self.editor, self.shown
        assert item is not None
        expected = editor.before + str(item.insert_text)
        self.put(editor.cursor, editor.offset(item.range.end), str(item.insert_text))
        self.do(editor.run_command(item))
        assert editor.before == expected

    @precondition(lambda self: self.shown is not None)
    @rule()
    def accept_a_word(self) -> None:
        editor, item = self.editor, self.shown
        assert item is not None
        word = WORD.match(str(item.insert_text))
        assert word is not None

        async def accept() -> None:
            editor.put(editor.cursor, editor.cursor, word[0])
            editor.accept_part(item, len(word[0]))

        self.do(accept())
        self.ask(is_explicit=False)

    def teardown(self) -> None:
        """The bridge has the document of the editor at the end, wherever it is looked at."""
        self.put(self.editor.cursor, self.editor.cursor, "§")
        self.ask(is_explicit=True)
        assert self.sent() == (self.editor.before, self.editor.after)


@asynccontextmanager
async def connected(encoding: types.PositionEncodingKind) -> AsyncIterator[tuple[OracleServer, LanguageClient]]:
    client = LanguageClient("editor", "1")
    async with run_oracle() as (oracle, address):
        await client.start_io(sys.executable, "-m", "completion_lsp", "--server", address)
        general = types.GeneralClientCapabilities(position_encodings=[encoding])
        document = types.TextDocumentClientCapabilities(inline_completion=types.InlineCompletionClientCapabilities())
        capabilities = types.ClientCapabilities(general=general, text_document=document)
        options = {"delayMs": 0}
        found = await client.initialize_async(types.InitializeParams(capabilities, initialization_options=options))
        assert found.capabilities.position_encoding == encoding
        client.initialized(types.InitializedParams())
        try:
            yield oracle, client
        finally:
            await client.shutdown_async(None)
            client.exit(None)
            await client.stop()


@contextmanager
def running(encoding: types.PositionEncodingKind) -> Iterator[tuple[Background, OracleServer, LanguageClient]]:
    with background_loop() as background:
        context = connected(encoding)
        oracle, client = background.run(context.__aenter__())
        try:
            yield background, oracle, client
        finally:
            background.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize(
    "encoding",
    [
        types.PositionEncodingKind.Utf16,
        pytest.param(types.PositionEncodingKind.Utf8, marks=pytest.mark.full),
        pytest.param(types.PositionEncodingKind.Utf32, marks=pytest.mark.full),
    ],
)
def test_text_is_never_doubled_lost_or_stale(encoding: types.PositionEncodingKind) -> None:
    with running(encoding) as (background, oracle, client):
        kind = type("EncodedMachine", (Machine,), {
            "background": background, "client": client, "oracle": oracle, "encoding": encoding,
        })  # fmt: skip
        run_state_machine_as_test(kind, settings=settings(max_examples=examples(0.5), stateful_step_count=30))
