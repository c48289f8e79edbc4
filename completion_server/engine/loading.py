"""Loads an engine in a thread that can't be interrupted, and ends what the load has started if it is given up.

Imports nothing of vLLM.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from completion_server.engine.processes import child_ids, kill_with_descendants

T = TypeVar("T")

logger = logging.getLogger(__name__)

_GIVE_UP_S = 10.0
"""How long a load that is given up may take to end. Its processes are killed at once; its thread may still compute."""

_POLL_S = 0.05

_one_at_a_time = threading.Lock()
"""Held by the thread that loads: a load that can't be stopped delays the next one, which would need its memory."""


class GivenUpError(Exception):
    """The load was given up before it started a process."""


class Loading(Generic[T]):
    """One load. At most one runs in a process."""

    def __init__(self, load: Callable[[], T], discard: Callable[[T], None]) -> None:
        """Prepare. `load` runs in a thread; `discard` frees a result that comes after `give_up` has returned."""
        self._load = load
        self._discard = discard
        self._lock = threading.Lock()
        self._is_given_up = False
        self._result: T | None = None
        self._thread: threading.Thread | None = None
        self._others: set[int] = set()
        """Child processes of this process that the load has not started."""

    def check(self) -> None:
        """To be called by `load` before it starts a process.

        Raises:
            GivenUpError: it was given up.

        """
        if self._is_given_up:
            raise GivenUpError("the load was given up")

    async def run(self) -> T:
        """Return what `load` returns. Neither a cancelled task nor the end of the process waits for its thread.

        Raises:
            Exception: what `load` raises.

        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(set_outcome: Callable[[Any], None], outcome: object) -> None:
            if not done.done():
                set_outcome(outcome)

        def run() -> None:
            try:
                result = self._run()
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                outcome: tuple[Callable[[Any], None], object] = (done.set_exception, error)
            else:
                outcome = (done.set_result, result)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, *outcome)

        self._thread = threading.Thread(target=run, daemon=True, name="engine-load")
        self._thread.start()
        return await done

    async def give_up(self) -> T | None:
        """Kill the processes that the load has started, wait for its end, and return the result if it came before."""
        with self._lock:
            self._is_given_up = True
            result, self._result = self._result, None
        if result is not None or self._thread is None:
            return result
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S):
                while self._thread.is_alive():
                    kill_with_descendants(child_ids() - self._others)
                    await asyncio.sleep(_POLL_S)
        if self._thread.is_alive():
            logger.warning("a load that was given up still runs; the next one waits for its end")
        return None

    def _run(self) -> T:
        with _one_at_a_time:
            self.check()
            self._others = child_ids()
            result = self._load()
            with self._lock:
                if not self._is_given_up:
                    self._result = result
                    return result
            self._discard(result)
            raise GivenUpError("the load was given up")
