"""Reload: read the configuration anew, and replace the front ends of a running server."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from completion_server.composition.checks import warn_of_exposure
from completion_server.composition.front_ends import FrontEnds
from completion_server.config import Config
from completion_server.core.errors import ConfigError, NotPossibleError

logger = logging.getLogger(__name__)

_PARENTS = ("engine", "speculation", "auth")
"""Sections that belong to the engine or to the admin listener, which stay as they are until a restart."""
_PARENTS_KEYS = (
    "processes",
    "admin_listen",
    "admin_tls",
    "metrics_listen",
    "region",
    "core_dumps",
    "listen",
    "http_listen",
)
"""Keys of [server] of which the same holds."""


def changed_for_good(before: Config, after: Config) -> Iterator[str]:
    """Yield the keys that differ and that only a restart changes."""
    for section in _PARENTS:
        yield from _differing(getattr(before, section), getattr(after, section), section)
    for key in _differing(before.server, after.server, "server"):
        if key.split(".")[1] in _PARENTS_KEYS:
            yield key


def _differing(before: object, after: object, prefix: str) -> Iterator[str]:
    for field in dataclasses.fields(before):  # type: ignore[arg-type]
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if dataclasses.is_dataclass(old):
            yield from _differing(old, new, f"{prefix}.{field.name}")
        else:
            yield f"{prefix}.{field.name}"


class Reloads:
    """Reloads that run, each to its end, whoever asked for it."""

    def __init__(
        self, as_read: Config, read_config: Callable[[], Config], front_ends: FrontEnds, busy: Callable[[], str]
    ) -> None:
        """Compare with `as_read`, the configuration at the start. `busy` says why none may begin now, or ""."""
        self._as_read = as_read
        self._read_config = read_config
        self._front_ends = front_ends
        self._busy = busy
        self._running: set[asyncio.Task[int]] = set()

    def begin(self, with_code: bool) -> "asyncio.Task[int]":
        """Begin to reload; the result is the number of front ends replaced. The log has its end.

        `with_code` lets them start from another installed version. The task raises NotPossibleError if the
        configuration can't be used, or needs a restart; the message names the keys.
        """
        task = asyncio.get_running_loop().create_task(self._reload(with_code), name="reload")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[int]") -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            logger.info("reloaded: %d front ends replaced", task.result())
        elif isinstance(error, NotPossibleError):
            logger.error("not reloaded: %s", error)
        else:
            logger.error("the reload failed", exc_info=error)

    async def _reload(self, with_code: bool) -> int:
        if busy := self._busy():
            raise NotPossibleError(busy)
        try:
            config = await asyncio.to_thread(self._read_config)
        except ConfigError as error:
            raise NotPossibleError(str(error)) from error
        if changed := list(changed_for_good(self._as_read, config)):
            raise NotPossibleError(f"{', '.join(changed)}: changed, which needs a restart of the server")
        used = self._front_ends.config.server
        server = replace(config.server, processes=used.processes, listen=used.listen, http_listen=used.http_listen)
        try:
            num_replaced = await self._front_ends.renew(replace(config, server=server), with_code=with_code)
        except ConfigError as error:
            raise NotPossibleError(str(error)) from error
        warn_of_exposure(self._front_ends.config, used.listen)
        return num_replaced
