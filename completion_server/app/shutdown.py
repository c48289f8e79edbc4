"""The stop of a server: names its stages in the log, and limits its time. Part of the composition root."""

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import EngineDeadError

logger = logging.getLogger(__name__)


class Shutdown:
    """Logs each stage of a stop, and gives up a stop that takes too long.

    The limit is kept by a thread: what does not end may be the event loop itself.
    """

    def __init__(self, timeout_s: float = math.inf, give_up: Callable[[str], None] = lambda _unfinished: None) -> None:
        """Call `give_up` in a thread `timeout_s` after the requests have ended, with the names of what has not."""
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._stage = ""
        self._is_limited = False
        self._timer: threading.Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def drain(self, num_requests: int, grace_s: float) -> None:
        """Begin the stage in which accepted requests finish, which `grace_s` limits."""
        self._log(f"draining: {num_requests} requests to finish")
        self._limit(grace_s + self._timeout_s)

    def begin(self, stage: str) -> None:
        """Begin another stage. The time limit is for all of them together."""
        self._log(stage)
        if not self._is_limited:
            self._is_limited = True
            self._limit(self._timeout_s)

    @contextlib.contextmanager
    def begins_on_failure(self) -> Iterator[None]:
        """Begin the stop, and its time limit, if what runs inside fails or is cancelled."""
        try:
            yield
        except BaseException:
            self.begin("ending the server's tasks after a failure")
            raise

    def _log(self, stage: str) -> None:
        self._stage = stage
        logger.info("%s", stage)

    def _limit(self, timeout_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if math.isfinite(timeout_s):
            self._loop = asyncio.get_running_loop()
            self._timer = threading.Timer(timeout_s, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        names: list[str] = []
        with contextlib.suppress(RuntimeError):  # tasks come and go in the loop's thread meanwhile
            names += sorted(task.get_name() for task in asyncio.all_tasks(self._loop))
        threads = (each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread())
        names += sorted(f"thread {each.name}" for each in threads)
        self._give_up(f'"{self._stage}" did not end; open: {", ".join(names) or "nothing"}')


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Raise what an operator must correct as it is, not in the group of a task group that it ended."""
    try:
        yield
    except ExceptionGroup as group:
        found: BaseException | None = group.subgroup((ConfigError, EngineDeadError))
        while isinstance(found, ExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        raise found from None
