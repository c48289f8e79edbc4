"""Keys of a terminal, and a terminal that goes away."""

import asyncio
import os
import pty
from typing import Any

import pytest

from completion_server.client.top.keys import reading_keys


async def test_a_terminal_that_is_gone_ends_the_view_without_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    keys: list[str] = []
    is_gone = asyncio.Event()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with reading_keys(keys.append, is_gone.set):
            os.write(controller, b"q")
            while not keys:
                await asyncio.sleep(0.01)
            os.close(controller)
            await asyncio.wait_for(is_gone.wait(), 5)
    assert keys == ["q"]
    assert not failures
