"""Loads an engine in a thread. A load that is given up can't be interrupted, but its processes are killed.

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

GIVE_UP_S = 10.0
"""How long `give_up` waits for the end of the thread. The processes of the load are killed at once."""

_POLL_S = 0.05

_one_at_a_time = threading.Lock()
"""Held by the loading thread. A load that does not end delays the next one, which needs its memory."""


class GivenUpError(Exception):
    """The load was given up before it started a process."""


class Loading(Generic[T]):
    """One load. At most one runs in a process."""

    def __init__(self, load: Callable[[], T], discard: Callable[[T], None], *, give_up_s: float = GIVE_UP_S) -> None:
        """Prepare. `load` runs in a thread; `discard` frees a result that comes after `give_up` has returned."""
        self._give_up_s = give_up_s
        self._load = load
        self._discard = discard
        self._lock = threading.Lock()
        self._is_given_up = False
        self._result: T | None = None
        self._thread: threading.Thread | None = None
        self._older_processes: set[int] = set()
        """Child processes that existed before the load."""

    def check(self) -> None:
        """Stop a load that was given up; `load` calls this before it starts a process.

        Raises:
            GivenUpError: it was given up.

        """
        if self._is_given_up:
            raise GivenUpError("the load was given up")

    async def run(self) -> T:
        """Return the result of `load`. Neither a cancelled task nor the end of the process waits for its thread.

        Raises:
            Exception: any error of `load`.

        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def report(set_outcome: Callable[[Any], None], outcome: object) -> None:
            if not done.done():
                set_outcome(outcome)

        def run() -> None:
            try:
                result = self._run()
            except BaseException as error:  # noqa: BLE001 - raised again in the task that waits
                outcome: tuple[Callable[[Any], None], object] = (done.set_exception, error)
            else:
                outcome = (done.set_result, result)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(report, *outcome)

        self._thread = threading.Thread(target=run, daemon=True, name="engine-load")
        self._thread.start()
        return await done

    async def give_up(self) -> T | None:
        """Kill the processes that the load has started, wait for its end, and return a result that came before."""
        with self._lock:
            self._is_given_up = True
            result, self._result = self._result, None
        if result is not None or self._thread is None:
            return result
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._give_up_s):
                while self._thread.is_alive():
                    kill_with_descendants(child_ids() - self._older_processes)
                    await asyncio.sleep(_POLL_S)
        if self._thread.is_alive():
            logger.warning("a load that was given up still runs; the next one waits for its end")
        return None

    def _run(self) -> T:
        with _one_at_a_time:
            self.check()
            self._older_processes = child_ids()
            result = self._load()
            with self._lock:
                if not self._is_given_up:
                    self._result = result
                    return result
            self._discard(result)
            raise GivenUpError("the load was given up")
