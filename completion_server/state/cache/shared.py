"""Level 2: completions in Redis, which all replicas read and write. Nothing waits for it.

A key holds the latest completion of its anchor. Redis drops it after its time, or earlier by its own maxmemory policy.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

from completion_server.core.clock import Clock
from completion_server.core.events import CacheMiss, CacheReplied, Emit, MissReason
from completion_server.core.outcome import CacheLevel
from completion_server.state.cache.codec import Codec
from completion_server.state.cache.entry import Entry
from completion_server.state.store import Store

_PATIENCE_S = 0.05
"""How long a completion may wait to be written together with others."""


class SharedCache:
    """Kept completions by the name of their anchor."""

    def __init__(self, store: Store, codec: Codec, clock: Clock, emit: Emit, *, key_prefix: str, ttl_s: float) -> None:
        """Keep completions in `store` for `ttl_s`, under keys that begin with `key_prefix`."""
        self._store = store
        self._codec = codec
        self._clock = clock
        self._emit = emit
        self._key_prefix = key_prefix
        self._ttl_ms = max(1, round(ttl_s * 1000))

    def fetch_nowait(self, name: bytes, on_entry: Callable[[Entry, float], None]) -> None:
        """Ask for an anchor's completion. `on_entry` gets it with the seconds that the reply took, if there is one."""
        sent_at = self._clock.now()

        def replied(reply: asyncio.Future[Any]) -> None:
            elapsed_s = self._clock.now() - sent_at
            self._emit(CacheReplied(elapsed_s))
            entry = self._read(name, reply)
            if isinstance(entry, MissReason):
                self._emit(CacheMiss(CacheLevel.SHARED, entry))
            else:
                on_entry(entry, elapsed_s)

        if self._store.is_available:
            self._store.call_nowait("GET", self._key(name)).add_done_callback(replied)
        else:
            self._emit(CacheMiss(CacheLevel.SHARED, MissReason.UNAVAILABLE))

    def put_nowait(self, name: bytes, entry: Entry) -> None:
        """Write an anchor's completion in a later turn of the event loop. A failure is ignored."""
        asyncio.get_running_loop().call_soon(self._put, name, entry)

    def _put(self, name: bytes, entry: Entry) -> None:
        if not self._store.is_available:
            return
        value = self._codec.encode(name, entry)
        if value is not None:
            written = self._store.call_nowait("SET", self._key(name), value, "PX", self._ttl_ms, patience_s=_PATIENCE_S)
            written.add_done_callback(_note)

    def _read(self, name: bytes, reply: asyncio.Future[Any]) -> Entry | MissReason:
        if reply.cancelled() or reply.exception() is not None:
            return MissReason.UNAVAILABLE
        value = reply.result()
        if value is None:
            return MissReason.ABSENT
        entry = self._codec.decode(name, value) if isinstance(value, bytes) else None
        return MissReason.UNDECODABLE if entry is None else entry

    def _key(self, name: bytes) -> str:
        return f"{self._key_prefix}:cache:{urlsafe_b64encode(name).decode()}"


def _note(written: asyncio.Future[Any]) -> None:
    """Read the error of a write, which asyncio would report else. The store logs its outages."""
    if not written.cancelled():
        written.exception()
