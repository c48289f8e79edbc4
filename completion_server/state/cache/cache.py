"""The completion cache: joins the process's memory (level 1) and Redis (level 2).

Level 1 is asked when a request comes in. If it has no answer, Redis is asked while the request waits for a slot or
computes, and what it replies is kept in level 1. Only completions that were computed are written.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from completion_server.core.clock import Clock, unix_offset_s
from completion_server.core.events import CacheHit, CacheMiss, Emit, MissReason, guarded
from completion_server.core.outcome import CachedAnswer, CacheLevel, FinishedAnswer
from completion_server.core.request import Request
from completion_server.state.cache.keys import CompletionKeys, RequestKeys
from completion_server.state.cache.local import Entry, LocalCache, Terms
from completion_server.state.cache.shared import Codec, SharedCache
from completion_server.state.secret import Secret
from completion_server.state.settings import CacheSettings, RedisSettings
from completion_server.state.store import Store

_MS_PER_S = 1000


class TwoLevelCache:
    """Keeps completions, and answers requests from them. Belongs to one event loop."""

    def __init__(
        self,
        settings: CacheSettings,
        clock: Clock,
        emit: Emit,
        keys: CompletionKeys | None = None,
        shared: SharedCache | None = None,
        may_be_elsewhere: Callable[[Request], bool] = lambda _request: True,
    ) -> None:
        """Keep completions in the process, and in `shared` if that is given.

        `may_be_elsewhere` tells whether another replica may have an answer to a request.
        """
        self._settings = settings
        self._clock = clock
        self._emit = emit
        self._unix_offset_s = unix_offset_s(clock)
        self._keys = keys
        self._local = LocalCache(settings.local_bytes, settings.local_ttl_s)
        self._shared = shared
        self._may_be_elsewhere = may_be_elsewhere

    @property
    def num_bytes(self) -> int:
        """Estimated memory of level 1."""
        return self._local.num_bytes

    @property
    def num_entries(self) -> int:
        """Completions in level 1."""
        return self._local.num_entries

    def use_keys(self, keys: CompletionKeys) -> None:
        """Begin to keep completions: the model, which is a part of their names, is known now."""
        self._keys = keys

    def look_up_nowait(self, request: Request, /) -> "Lookup | None":
        """Look a request up in level 1; None if its completion is not kept."""
        names = self._keys.of(request) if self._keys is not None else None
        if names is None:
            return None
        terms = Terms.of(request)
        found = self._local.get(request.prefix, names.anchors, terms, self._clock.now())
        if found is None:
            self._emit(CacheMiss(CacheLevel.LOCAL, MissReason.ABSENT))
            is_shared = self._shared is not None and names.is_shared and self._may_be_elsewhere(request)
            return Lookup(self, request.prefix, names, terms, None, asks_shared=is_shared)
        self._report_hit(CacheLevel.LOCAL, found)
        return Lookup(self, request.prefix, names, terms, found.answer(CacheLevel.LOCAL))

    def fetch_nowait(self, lookup: "Lookup", on_answer: Callable[[CachedAnswer], bool]) -> None:
        """Ask level 2 for a request that level 1 has no answer for. Call `on_answer` if the reply comes in time."""
        if self._shared is None or not lookup.asks_shared:
            return
        anchor = lookup.names.anchors[0]

        def take(entry: Entry, elapsed_s: float) -> None:
            self._local.put(anchor.name, entry, self._clock.now())
            found = entry.after(lookup.prefix[anchor.offset :], lookup.terms)
            if found is None:
                self._emit(CacheMiss(CacheLevel.SHARED, MissReason.ABSENT))
            elif elapsed_s * _MS_PER_S > self._settings.lookup_ms:
                self._emit(CacheMiss(CacheLevel.SHARED, MissReason.LATE))
            elif not on_answer(found.answer(CacheLevel.SHARED)):
                self._emit(CacheMiss(CacheLevel.SHARED, MissReason.UNUSED))
            else:
                self._report_hit(CacheLevel.SHARED, found)

        self._shared.fetch_nowait(anchor.name, take)

    def keep(self, lookup: "Lookup", answer: FinishedAnswer) -> None:
        """Keep a computed answer at the cursor that its generation began at."""
        length = len(lookup.prefix) - answer.num_typed
        anchor = lookup.names.nearest(length)
        if anchor is None:
            return
        now = self._clock.now()
        entry = Entry(
            tail=lookup.prefix[anchor.offset : length],
            text=lookup.prefix[length:] + answer.text,
            reason=answer.reason,
            made_at=now + self._unix_offset_s,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_completion_tokens=answer.num_completion_tokens,
            engine_s=answer.engine_s,
        )
        is_new = self._local.put(anchor.name, entry, now)
        if is_new and self._shared is not None and lookup.names.is_shared:
            self._shared.put_nowait(anchor.name, entry)

    def _report_hit(self, level: CacheLevel, found: Entry) -> None:
        """Report a request that was answered with `found`."""
        age_s = max(0.0, self._clock.now() + self._unix_offset_s - found.made_at)
        hit = CacheHit(level, age_s, found.num_prompt_tokens, found.num_completion_tokens, found.engine_s)
        self._emit(hit)

    async def run(self) -> None:
        """Free completions whose time is over, also while no request comes, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.local_ttl_s)
            self._local.sweep(self._clock.now())


@dataclass(frozen=True, slots=True)
class Lookup:
    """A request's place in the cache. Its names are made once."""

    cache: TwoLevelCache
    prefix: str
    names: RequestKeys
    terms: Terms
    answer: CachedAnswer | None
    """What level 1 knew when the request came in."""
    asks_shared: bool = False
    """Whether level 2 may know more."""

    def fetch_nowait(self, on_answer: Callable[[CachedAnswer], bool]) -> None:
        """Ask level 2; see `TwoLevelCache.fetch_nowait`."""
        self.cache.fetch_nowait(self, on_answer)

    def keep(self, answer: FinishedAnswer) -> None:
        """Keep the computed answer for later requests."""
        self.cache.keep(self, answer)


def make_cache(
    settings: CacheSettings,
    redis: RedisSettings,
    secret: Secret,
    store: Store | None,
    clock: Clock,
    emit: Emit,
    may_be_elsewhere: Callable[[Request], bool] = lambda _request: True,
) -> TwoLevelCache | None:
    """Return the configured cache, which keeps completions from `use_keys` on; None if it is disabled."""
    if not settings.enabled:
        return None
    emit, shared = guarded(emit), None
    if store is not None and settings.shared:
        codec = Codec(secret.derive("cache values"))
        shared = SharedCache(store, codec, clock, emit, key_prefix=redis.key_prefix, ttl_s=settings.shared_ttl_s)
    return TwoLevelCache(settings, clock, emit, shared=shared, may_be_elsewhere=may_be_elsewhere)
