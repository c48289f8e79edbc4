"""An event loop in a thread, for tests that are not coroutines themselves."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any, TypeVar

T = TypeVar("T")
_TIMEOUT_S = 60.0


class Background:
    """Runs coroutines in the thread's loop, and waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = _TIMEOUT_S) -> T:
        """Run a coroutine and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)


@contextmanager
def background_loop() -> Iterator[Background]:
    """Run a loop in a thread of its own. Its tasks are cancelled at the end, or their coroutines would warn later."""
    started: Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def run_until_stopped() -> None:
        stopped = asyncio.Event()
        started.put((asyncio.get_running_loop(), stopped))
        await stopped.wait()

    thread = threading.Thread(target=asyncio.run, args=(run_until_stopped(),), daemon=True)
    thread.start()
    loop, stopped = started.get(timeout=_TIMEOUT_S)
    try:
        yield Background(loop)
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(_TIMEOUT_S)
        assert not thread.is_alive(), f"the event loop did not stop within {_TIMEOUT_S} s"
