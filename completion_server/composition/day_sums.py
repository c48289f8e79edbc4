"""Adds up the tokens of tenants on a day over all replicas. Part of the composition root."""

import asyncio

from completion_server.admission.day_tokens import DayTokens
from completion_server.core.checks import DAY_S
from completion_server.state.secret import Secret
from completion_server.state.store import Store, StoreUnavailableError

_EVERY_S = 1.0
_KEPT_S = 2 * DAY_S
"""Longer than a day, for replicas whose clocks differ."""


class DaySums:
    """Exchanges what this replica has counted for the sums in Redis, once a second. No request waits for it."""

    def __init__(self, store: Store, secret: Secret, key_prefix: str, counts: DayTokens) -> None:
        """Add the changes of `counts` to the sums of all replicas, and let it learn these."""
        self._store = store
        self._secret = secret
        self._key_prefix = key_prefix
        self._counts = counts

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.exchange()

    async def exchange(self) -> None:
        """Add what was counted since the last exchange. What Redis does not take is added with the next one."""
        day, changes = self._counts.changes()
        sums = {key: self._add(f"{self._name(key)}:{day}", num_tokens) for key, num_tokens in changes.items()}
        for key, reply in sums.items():
            try:
                self._counts.learn(day, key, int(await reply))
            except StoreUnavailableError:
                self._counts.restore(day, key, changes[key])

    def _add(self, name: str, num_tokens: int) -> "asyncio.Future[int]":
        reply = self._store.call_nowait("INCRBY", name, num_tokens)
        self._store.call_nowait("EXPIRE", name, _KEPT_S)
        return reply

    def _name(self, key: str) -> str:
        return f"{self._key_prefix}:tokens:{self._secret.name('day', key)}"
