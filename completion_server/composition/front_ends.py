"""The front ends of a server: starts their processes, replaces those that die or hang, and renews them all.

Part of the composition root.
"""

import asyncio
import contextlib
import logging
import pickle
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from completion_server import __version__
from completion_server.composition.front_end import REPORT_EVERY_S, run
from completion_server.composition.links import (
    INTERFACE,
    PROCESSES,
    AskMetrics,
    Drain,
    EngineDown,
    EngineUp,
    FromFrontEnd,
    Link,
    Metrics,
    Plan,
    Refused,
    Report,
    Serving,
    ToFrontEnd,
)
from completion_server.config import Config
from completion_server.core.clock import Clock
from completion_server.core.errors import ConfigError
from completion_server.engine.processes import FRONT_END
from completion_server.engine.start_times import RestartBackoff
from completion_server.state.local.group import LocalGroup

logger = logging.getLogger(__name__)

_SILENT_REPORTS = 30
"""A front end that leaves out so many reports hangs. Much else may keep a busy machine from running it."""
_METRICS_S = 3.0
_START_S = 300.0
"""From the start of a front end, and from when the engine is up, to its first answer."""
_END_S, _EXIT_S = 5.0, 1.0
_MAX_FAILED_STARTS = 3
"""Processes in a row, at one place, that end before they serve."""


@dataclass(eq=False, slots=True)
class _RestartHistory:
    """Of a process and those that follow it when it dies. One whose followers die at once delays no other."""

    backoff: RestartBackoff
    num_failed: int = 0
    """Processes in a row that ended before they served, without a reason of their own."""


@dataclass(eq=False)
class FrontEndProcess:
    """One process, from its start to its end."""

    place: int
    process: BaseProcess
    link: Link[FromFrontEnd, ToFrontEnd]
    began_at: float
    history: _RestartHistory
    serving: asyncio.Future[Serving]
    """Set when it serves, or another one that took its place at the start; a ConfigError if it can't."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_leaving: bool = False
    """Whether its end is expected."""
    report: Report | None = None
    num_silent: int = 0
    """Reports that it left out."""
    page: str = ""
    """Its metrics, as it sent them last."""
    asked: asyncio.Future[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether it has begun to serve."""
        return self.serving.done() and not self.serving.cancelled() and self.serving.exception() is None


class FrontEnds:
    """The processes that take requests. `run` keeps as many as are configured."""

    def __init__(
        self,
        config: Config,
        number: int,
        clock: Clock,
        group_at: Callable[[int], LocalGroup],
        cleared: Callable[[int], Any],
        ended: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        """Keep `number` processes; `group_at` returns what the one at a place has of the others.

        A process that has ended leaves its place, whose traces `cleared` removes, and its last metrics, to `ended`.
        `changed` is called when one begins or ceases to serve.
        """
        self.config = config
        self.number = number
        self._clock = clock
        self._group_at = group_at
        self._cleared = cleared
        self._page_ended = ended
        self._changed = changed
        self._version = __version__
        """Of the code that processes start with, "" for any."""
        self._engine_up_at = 0.0
        self.ended_requests = Counter[str]()
        """What the processes that have ended had reported."""
        self._engine: EngineUp | None = None
        self._by_place: dict[int, FrontEndProcess] = {}
        self._first: list[asyncio.Future[Serving]] = []
        self._replacing: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._renewing = asyncio.Lock()

    # What they are

    @property
    def all(self) -> list[FrontEndProcess]:
        """Those that live, by place."""
        return [self._by_place[place] for place in sorted(self._by_place)]

    @property
    def reports(self) -> list[Report]:
        """What those that live reported last."""
        return [each.report for each in self.all if each.report is not None]

    # Their lives

    async def start(self) -> None:
        """Start them all. They serve when the engine is up."""
        async with self._renewing:
            self._first = [(await self._start(self.config, self._version)).serving for _ in range(self.number)]

    async def wait_serving(self) -> Serving:
        """Wait until all serve; return what one said.

        Raises:
            ConfigError: one can't start.

        """
        found = await asyncio.gather(*self._first)
        return found[0]

    async def run(self) -> None:
        """Watch for those that hang, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            for each in self.all:
                if each.is_serving:
                    each.num_silent += 1
                since = max(each.began_at, self._engine_up_at)
                is_late = not each.is_serving and self._engine is not None and self._clock.now() - since > _START_S
                if is_late or each.num_silent > _SILENT_REPORTS:
                    logger.error("front end %d hangs", each.place)
                    each.process.kill()

    def engine_is_up(self, up: EngineUp) -> None:
        """Tell them that an engine is ready."""
        self._engine, self._engine_up_at = up, self._clock.now()
        self.tell(up)

    def engine_is_down(self) -> None:
        """Tell them that the engine has died."""
        self._engine = None
        self.tell(EngineDown())

    def tell(self, message: ToFrontEnd) -> None:
        """Send a message to all."""
        for each in self.all:
            each.link.send(message)

    @property
    def is_any_serving(self) -> bool:
        """Whether one takes requests."""
        return any(each.is_serving for each in self.all)

    async def renew(self, config: Config, *, with_code: bool) -> int:
        """Replace them one after another by others with `config`; return how many. Requests go on meanwhile.

        `with_code` lets these and all later ones start from another installed version.

        Raises:
            ConfigError: a new one can't start; the old ones that are left stay.

        """
        async with self._renewing:
            version, num_replaced = "" if with_code else self._version, 0
            for old in self.all:
                if self._is_stopping:
                    break
                new = await self._start(config, version)
                new.is_leaving = True  # until it serves nothing replaces it
                try:
                    await new.serving
                except ConfigError:
                    await self._end([new], 0.0)
                    raise
                new.is_leaving = False
                self.config, self._version = config, version  # of those that replace one that dies
                num_replaced += 1
                await self._end([old], config.server.grace_s)
            return num_replaced

    async def stop(self, grace_s: float) -> None:
        """Let accepted requests finish, and end them all."""
        self._is_stopping = True
        for task in self._replacing:
            task.cancel()
        await self._end(self.all, grace_s)

    def kill(self) -> None:
        """End them at once."""
        self._is_stopping = True
        for each in self.all:
            each.process.kill()

    async def collect_pages(self) -> dict[str, str]:
        """Return the metrics of each; those that one sent before if it does not answer."""
        asked = [each for each in self.all if each.is_serving]
        for each in asked:
            if each.asked is None or each.asked.done():
                each.asked = asyncio.get_running_loop().create_future()
                each.link.send(AskMetrics())
        waited = [each.asked for each in asked if each.asked is not None]
        if waited:
            await asyncio.wait(waited, timeout=_METRICS_S)
        return {str(each.place): each.page for each in asked if each.page and not each.ended.is_set()}

    async def _start(self, config: Config, version: str, dead: FrontEndProcess | None = None) -> FrontEndProcess:
        """Start a process, which follows a dead one, or none."""
        place = next(place for place in range(2 * self.number) if place not in self._by_place)
        self._cleared(place)
        ours, theirs = socket.socketpair()
        plan = pickle.dumps(Plan(config, self._group_at(place)))
        arguments = (INTERFACE, version, plan, theirs)
        process = PROCESSES.Process(target=run, args=arguments, name=f"{FRONT_END} {place}")
        process.start()
        theirs.close()
        link: Link[FromFrontEnd, ToFrontEnd] = Link(
            lambda message: self._receive(started, message), lambda: self._closed(started)
        )
        history = dead.history if dead else _RestartHistory(RestartBackoff(config.engine))
        serving = dead.serving if dead and not dead.serving.done() else asyncio.get_running_loop().create_future()
        started = self._by_place[place] = FrontEndProcess(place, process, link, self._clock.now(), history, serving)
        await link.open(ours)
        if self._engine is not None:
            link.send(self._engine)
        return started

    def _receive(self, sender: FrontEndProcess, message: FromFrontEnd) -> None:
        match message:
            case Report():
                sender.report, sender.num_silent = message, 0
            case Metrics(text):
                sender.page = text
                if sender.asked is not None and not sender.asked.done():
                    sender.asked.set_result(None)
            case Serving() if not sender.serving.done():
                sender.serving.set_result(message)
                self._changed()
            case Refused(reason):
                logger.error("front end %d: %s", sender.place, reason)
                if not sender.serving.done():
                    sender.serving.set_exception(ConfigError(reason))

    def _closed(self, process: FrontEndProcess) -> None:
        """Note that a process has ended, or is about to: nothing else closes its connection."""
        is_expected = process.is_leaving or self._is_stopping
        if not is_expected:
            process.process.join(_EXIT_S)  # to know how: it closes its files a moment before it is gone
        how = _how_ended(process.process.exitcode)
        process.process.kill()
        process.process.join(_END_S)
        del self._by_place[process.place]
        self._cleared(process.place)
        process.ended.set()
        if process.page:
            self._page_ended(process.page)
        if process.report is not None:
            self.ended_requests.update(process.report.ended)
        self._changed()
        history = process.history
        history.num_failed = 0 if process.serving.done() else history.num_failed + 1
        if history.num_failed and (is_expected or history.num_failed == _MAX_FAILED_STARTS):
            process.serving.set_exception(ConfigError(f"front end {process.place} ended at its start: {how}"))
            process.serving.exception()  # somebody may await it, or not
        if is_expected:
            return
        wait_s = history.backoff.next_wait_s(self._clock.now() - process.began_at)
        is_refused = process.serving.done() and not process.is_serving
        said = "can't start" if is_refused else f"died: {how}"
        logger.error("front end %d %s; another one starts in %g s", process.place, said, wait_s)
        replacing = self._replace(process, wait_s)
        task = asyncio.get_running_loop().create_task(replacing, name="replace a front end")
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, dead: FrontEndProcess, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        async with self._renewing:
            if len(self._by_place) < self.number and not self._is_stopping:
                await self._start(self.config, self._version, dead)

    async def _end(self, leaving: Iterable[FrontEndProcess], grace_s: float) -> None:
        """Drain processes and wait for their end; kill those that take too long."""
        found = list(leaving)
        for each in found:
            each.is_leaving = True
            each.link.send(Drain(grace_s))
        limit_s = grace_s + self.config.server.stop_timeout_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for each in found:
                    await each.ended.wait()
        for each in found:
            if not each.ended.is_set():
                logger.error("front end %d did not end within %g s", each.place, limit_s)
                each.process.kill()
                await each.ended.wait()


def _how_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "it closed its connection to the parent"
    return f"exit status {exit_code}" if exit_code >= 0 else f"killed by {signal.Signals(-exit_code).name}"
