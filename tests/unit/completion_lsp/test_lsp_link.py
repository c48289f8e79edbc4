"""What the link tells its listeners, with a client that is not real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from completion_client import Endpoint, Move
from completion_lsp import link as link_module
from completion_lsp.link import Link, Servers
from tests.support.scripted import in_virtual_time

HERE, THERE = Endpoint("here.test:1"), Endpoint("there.test:1")


class Client:
    """Has a session that is connected, or not."""

    endpoint = HERE
    is_connected = True
    on_move: Any

    def __init__(self, *_: object, **__: object) -> None:
        self.made.append(self)

    made: list["Client"] = []  # noqa: RUF012 - cleared by each test

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @asynccontextmanager
    async def session(self, *, listener: object, on_move: object) -> AsyncIterator["Client"]:
        assert listener is not None
        self.on_move = on_move
        yield self


class Listener:
    """Records."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_connected(self) -> None:
        self.names.append("connected")

    def on_away(self) -> None:
        self.names.append("away")


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_move_without_a_loss_is_another_connection(monkeypatch: pytest.MonkeyPatch, is_connected: bool) -> None:
    """The other server may write next edits where the one before did not. After a loss the reconnect tells."""
    monkeypatch.setattr(link_module, "CompletionClient", Client)
    Client.made.clear()

    @in_virtual_time
    async def run() -> None:
        link, listener = Link(Servers([HERE, THERE])), Listener()
        link.listeners.append(listener)
        link.start_nowait()
        await asyncio.sleep(1)
        (client,) = Client.made
        client.is_connected = is_connected
        client.on_move(Move(HERE, THERE, ""))
        assert listener.names == ["connected"], "a listener was told within the call that moves"
        await asyncio.sleep(1)
        assert listener.names == ["connected"] * (2 if is_connected else 1)
        await link.aclose()

    run()
