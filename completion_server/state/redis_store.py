"""The store that replicas share: Redis behind a breaker.

One task sends all commands, in batches, because a batch costs about as much as four commands in it. A command waits for
its batch as long as it has patience, and while another batch is on its way. Callers get futures: cancelling one never
cancels a command on the connection, so replies can't be mixed up and connections last.
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from redis import exceptions

from completion_server.core.clock import Clock
from completion_server.core.process import raise_if_cancelled
from completion_server.state.clients import CONNECT_TIMEOUT_S, FAILURES, Client, forget_nodes, make_client
from completion_server.state.settings import RedisSettings
from completion_server.state.store import Arg, StoreUnavailableError

logger = logging.getLogger(__name__)

_MAX_BATCH = 512
_PAUSE_S = 0.001
"""Between two batches. A command alone goes at once; under load several share the cost of a batch."""
_MAX_WAITING = 20_000
_PROBE_EVERY_S = 1.0
"""So that a Redis that can't be written to is noticed, also while no request needs it."""
_PROBE_TTL_MS = 1000
_LOG_AGAIN_S = 60.0
_MAX_REASON = 200
_MAX_FAULTS = 32
"""How many kinds of faults are remembered, so that they are not logged again."""
_OUTAGES = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.NoPermissionError,
    exceptions.ClusterDownError,
    exceptions.RedisClusterException,
)
_OTHER_OUTAGES = ("NOREPLICAS", "MASTERDOWN", "MISCONF", "BUSY ")
"""Error replies that say that Redis can't serve, not that a command is wrong, and for which redis-py has no class."""


class RedisStore:
    """Sends commands to Redis. Implements `Store`."""

    def __init__(self, settings: RedisSettings, clock: Clock) -> None:
        """Prepare; `run` connects."""
        self.settings = settings
        self.client: Client = make_client(settings)
        """For those who need a connection of their own."""
        self.breaker = Breaker(settings.retry_s)
        """To be read only."""
        self._clock = clock
        self._waiting: deque[tuple[tuple[Arg, ...], asyncio.Future[Any]]] = deque()
        self._is_due = asyncio.Event()
        """Set when a waiting command has no patience left."""
        self._timer: asyncio.TimerHandle | None = None
        """Sets `_is_due` for the first command with patience."""
        self.num_commands = 0
        """Commands sent so far."""
        self._probed_at = -math.inf
        self._is_failing = False
        """Whether the failure was logged since the last success."""
        self._faults: dict[str, float] = {}
        """When each error that is no outage was logged."""

    @property
    def is_available(self) -> bool:
        """Whether commands are sent. If not, they fail at once."""
        return not self.breaker.is_open

    def call_nowait(self, *command: Arg, patience_s: float = 0.0) -> "asyncio.Future[Any]":
        """Send a command, see `Store`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.breaker.is_open:
            _fail(future, self.breaker.reason)
        elif len(self._waiting) >= _MAX_WAITING:
            _fail(future, f"{_MAX_WAITING} commands wait already")
        else:
            self._waiting.append((command, future))
            self._send_within(patience_s, future.get_loop())
        return future

    async def run(self) -> None:
        """Send commands until cancelled."""
        try:
            while True:
                if self.breaker.is_open:
                    await asyncio.sleep(self.breaker.probe_in_s(self._clock.now()))
                    await self._probe()
                else:
                    await self._await_due()
                    if self._clock.now() >= self._probed_at + _PROBE_EVERY_S:
                        await self._probe()
                    await self._send_waiting()
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._clear_timer()
            self._fail_waiting("the server is stopping")
            await self._close()

    async def _await_due(self) -> None:
        """Wait until commands are due, or a probe may be."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_EVERY_S):
                await self._is_due.wait()

    async def _close(self) -> None:
        try:
            await self.client.aclose()
        except Exception as error:  # noqa: BLE001 - nothing depends on it any more
            logger.warning("closing the connections to Redis: %s: %s", type(error).__name__, error)

    async def _send_waiting(self) -> None:
        self._is_due.clear()
        self._clear_timer()
        while self._waiting and not self.breaker.is_open:
            batch = [self._waiting.popleft() for _ in range(min(_MAX_BATCH, len(self._waiting)))]
            try:
                replies = await self._execute([command for command, _future in batch])
            except BaseException as error:
                for _command, future in batch:
                    _fail(future, str(error))
                raise
            for (_command, future), reply in zip(batch, replies, strict=True):
                if isinstance(reply, Exception):
                    _fail(future, str(reply))
                elif not future.done():
                    future.set_result(reply)

    def _send_within(self, patience_s: float, loop: asyncio.AbstractEventLoop) -> None:
        if not patience_s:
            self._is_due.set()
        elif self._timer is None or loop.time() + patience_s < self._timer.when():
            self._clear_timer()
            self._timer = loop.call_later(patience_s, self._is_due.set)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _probe(self) -> None:
        """Try what replicas do: write, and send a message. A Redis that refuses either is of no use."""
        self._probed_at = self._clock.now()
        name = f"{self.settings.key_prefix}:probe:{self.settings.replica_id}"
        probe: list[tuple[Arg, ...]] = [("SET", name, 1, "PX", _PROBE_TTL_MS), ("SPUBLISH", name, b"")]
        await self._execute(probe, lambda _error: True)

    async def _execute(
        self, commands: list[tuple[Arg, ...]], is_outage: Callable[[Exception], bool] | None = None
    ) -> list[Any]:
        """Send commands and return their replies; an error takes the place of the reply of the command that failed.

        An error reply opens the breaker if `is_outage` says so.
        """
        replies = await self._execute_once(commands, is_outage or _is_outage)
        if self.breaker.is_open:
            await forget_nodes(self.client)
        raise_if_cancelled()
        return replies

    async def _execute_once(self, commands: list[tuple[Arg, ...]], is_outage: Callable[[Exception], bool]) -> list[Any]:
        self.num_commands += len(commands)
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S + self.settings.timeout_ms / 1000):
                replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except FAILURES as error:
            self._failed(error)
            return [error] * len(commands)
        except Exception as error:  # a bug, in the library or here; requests must not suffer from it
            logger.exception("commands to Redis failed")
            self._failed(error)
            return [error] * len(commands)
        outage = next((reply for reply in replies if isinstance(reply, Exception) and is_outage(reply)), None)
        if outage is not None:
            self._failed(outage)
        else:
            self._succeeded()
            self._log_faults(replies)
        return replies

    def _failed(self, error: Exception) -> None:
        reason = _reason(error)
        if not self._is_failing:
            self._is_failing = True
            logger.warning("Redis fails, so this replica goes on alone: %s", reason)
        if self.breaker.failed(reason, self._clock.now()):
            self._fail_waiting(reason)

    def _succeeded(self) -> None:
        self._is_failing = False
        opened_at = self.breaker.opened_at
        if self.breaker.succeeded():
            gone = "" if opened_at is None else f" after {self._clock.now() - opened_at:.1f} s"
            logger.info("Redis answers%s", gone)

    def _fail_waiting(self, reason: str) -> None:
        while self._waiting:
            _fail(self._waiting.popleft()[1], reason)

    def _log_faults(self, replies: list[Any]) -> None:
        """Log errors that are none of Redis's outages: a bug, or a server that lacks a command. Each once a minute."""
        faults = {_reason(reply) for reply in replies if isinstance(reply, Exception)}
        if not faults:
            return
        now = self._clock.now()
        self._faults = {fault: at for fault, at in self._faults.items() if now - at < _LOG_AGAIN_S}
        for fault in sorted(faults - self._faults.keys()):
            if len(self._faults) < _MAX_FAULTS:
                self._faults[fault] = now
                logger.error("Redis refuses a command: %s", fault)


def _is_outage(error: Exception) -> bool:
    return isinstance(error, _OUTAGES) or str(error).startswith(_OTHER_OUTAGES)


def _reason(error: Exception) -> str:
    """Return an error's type and text, without the arguments that Redis repeats: they differ, and may be of users."""
    text = str(error).partition(", with args beginning with")[0][:_MAX_REASON]
    if "unknown command" in text and "SPUBLISH" in text:
        return f"Redis 7.0 or later is needed: {text}"
    return f"{type(error).__name__}: {text}"


def _fail(future: "asyncio.Future[Any]", reason: str) -> None:
    if not future.done():
        future.set_exception(StoreUnavailableError(reason))
        future.exception()  # marks it as read: not every caller waits


class Breaker:
    """Begins open: the first probe closes it."""

    def __init__(self, retry_s: float) -> None:
        """Probe every `retry_s` while open."""
        self._retry_s = retry_s
        self.is_open = True
        self.reason = "not connected yet"
        """Why it is open, "" if it is closed."""
        self.opened_at: float | None = None
        """Clock seconds of the failure that opened it; None if it has never been closed."""
        self.num_opened = 0
        """How often a failure has opened it."""
        self._probe_at = 0.0

    def failed(self, reason: str, now: float) -> bool:
        """Note a failure; return whether it opened the breaker."""
        self._probe_at = now + self._retry_s
        was_open, self.is_open, self.reason = self.is_open, True, reason
        if was_open:
            return False
        self.opened_at = now
        self.num_opened += 1
        return True

    def succeeded(self) -> bool:
        """Note a success; return whether it closed the breaker."""
        was_open, self.is_open, self.reason = self.is_open, False, ""
        return was_open

    def probe_in_s(self, now: float) -> float:
        """Return the seconds until the next probe is due, 0 for now."""
        return max(0.0, self._probe_at - now)
