"""Several servers: an editor goes on at another one when its own is gone."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from completion.v1 import completion_pb2 as pb
from completion_client import Endpoint, Move, Token
from completion_lsp.link import Link, Servers
from tests.support.guarded_replica import run_guarded
from tests.support.oracle_server import LINE, run_oracle
from tests.support.server import eventually


class Events:
    """Records what a link tells its listener."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_connected(self) -> None:
        self.names.append("connected")

    def on_away(self) -> None:
        self.names.append("away")


async def test_the_loss_of_one_of_several_servers_is_no_pause(caplog: pytest.LogCaptureFixture) -> None:
    """The session opens another stream within ten seconds by itself, but for a request at once."""
    request = pb.CompleteRequest(prefix=LINE[:2])
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        servers = {}
        for stack in (first, second):
            oracle, address = await stack.enter_async_context(run_oracle())
            servers[address] = oracle, stack
        link, events = Link(Servers([Endpoint(each) for each in servers], "ada")), Events()
        link.listeners.append(events)
        link.start_nowait()
        await eventually(lambda: bool(events.names))
        session = link.session()
        assert session is not None
        await session.complete(request)
        ((_, own),) = [each for each in servers.values() if each[0].num_requests]
        await own.aclose()
        await eventually(lambda: "the connection was lost" in caplog.text)
        assert link.session() is session
        assert (await session.complete(request)).text == LINE[2:]
        assert "away" not in events.names
        await link.aclose()


@pytest.mark.parametrize("is_connected", [True, False])
async def test_a_move_without_a_loss_is_another_connection(is_connected: bool) -> None:
    """The other server may write next edits where the one before did not. After a loss the reconnect tells."""
    here, there = Endpoint("here.test:1"), Endpoint("there.test:1")
    link, events = Link(Servers([here, there])), Events()
    link.listeners.append(events)
    session: Any = SimpleNamespace(is_connected=is_connected)
    link._session = session
    link._on_move(Move(here, there, ""))
    assert events.names == [], "a listener was told within the call that moves"
    await asyncio.sleep(0)
    assert events.names == ["connected"] * is_connected


async def test_a_refused_token_is_told_once_and_another_is_used(tmp_path: Path) -> None:
    file = tmp_path / "token"
    told: list[str] = []
    await asyncio.to_thread(file.write_text, "bad")
    async with run_guarded() as (server, address):
        link = Link(Servers([Endpoint(address, token=Token.of_file(file))]))
        link.on_refused = told.append
        link.start_nowait()
        try:
            await eventually(lambda: bool(told))
            await asyncio.to_thread(file.write_text, "good")
            await eventually(lambda: link.session() is not None)
        finally:
            await link.aclose()
    assert told == [f"no completions: the server refused the token of the file {file}: it is unknown"]
    assert server.presented == ["bad", "good"]


async def test_an_editor_shows_that_the_server_wants_a_token() -> None:
    client = LanguageClient("editor", "1")
    messages: list[str] = []
    client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: messages.append(params.message))
    async with run_guarded() as (_server, address):
        await client.start_io(sys.executable, "-m", "completion_lsp", "--server", address)
        await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
        client.initialized(types.InitializedParams())
        await eventually(lambda: bool(messages))
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()
    (message,) = messages
    assert message.startswith("completion-lsp: no completions: the server wants a token: there is none; start")
