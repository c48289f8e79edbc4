"""Which requests find their document in a GPU's prefix cache, and what the users of a lost region add. Pure.

The cache keeps the documents that were asked for last (LRU), one for each session. So a request finds its document if
fewer others than fit were asked for since its user's last request. Users are independent, so the number of those others
is binomial.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from loadtest.planning.assumptions import Gpu, Memory, Users
from loadtest.traffic.typist import TypingModel

_GB = 1e9
_TIMES_S = tuple(1e-2 * 10 ** (place / 16) for place in range(128))
"""Times at which a curve is known: 16 in each power of ten, up to eleven days."""


@dataclass(frozen=True, slots=True)
class ReuseCurve:
    """How soon users who type ask again, at each of `_TIMES_S`."""

    asked: tuple[float, ...]
    """Share of the users who send a request within a time that begins at any moment."""
    later: tuple[float, ...]
    """Share of the requests that come later than that after the user's last one."""


@lru_cache(maxsize=64)  # the variations of a plan have few typists
def reuse_curve(typist: TypingModel, debounce_s: float) -> ReuseCurve:
    """Return the curve of a typist whose editor asks when no key came for `debounce_s`.

    Between two requests are one gap above `debounce_s` and gaps below it, which count with their mean.
    """
    asked_per_s = typist.requests_per_s(debounce_s)
    least_s = 1 / asked_per_s - typist.mean_standing_s(debounce_s, _TIMES_S[-1])
    beyond_s = [max(0.0, seconds - least_s) for seconds in _TIMES_S]
    return ReuseCurve(
        asked=tuple(
            asked_per_s * (min(seconds, least_s) + typist.mean_standing_s(debounce_s, beyond))
            for seconds, beyond in zip(_TIMES_S, beyond_s, strict=True)
        ),
        later=tuple(typist.share_standing(debounce_s, beyond) for beyond in beyond_s),
    )


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """The prefix cache of one server, and its users."""

    kv_gb: float
    """Memory for the KV cache, of all the server's GPUs."""
    documents: float
    """Documents that fit."""
    document_tokens: float
    typing_share: float
    """Share of the sessions that ask for anything; by counts of one's own the share that sends so many requests."""
    curve: ReuseCurve

    def hit_share(self, sessions: float) -> float:
        """Return the share of the requests of so many sessions whose document is in the cache."""
        return _hit_share(self.curve, sessions * self.typing_share, self.documents)


@lru_cache(maxsize=4096)  # the variations of a plan look at the same numbers of sessions
def _hit_share(curve: ReuseCurve, typing: float, documents: float) -> float:
    if typing <= documents:
        return 1.0
    found, asked_before, later_before = 0.0, 0.0, 1.0
    for asked, later in zip(curve.asked, curve.later, strict=True):
        if later < later_before:
            found += (later_before - later) * _share_fitting(typing - 1, (asked_before + asked) / 2, documents)
        asked_before, later_before = asked, later
    return found


def _share_fitting(others: float, asked: float, documents: float) -> float:
    """Return the probability that the documents of those `others` who asked fit beside one more.

    The binomial distribution is taken as normal.
    """
    deviation = math.sqrt(others * asked * max(1 - asked, 1e-9))
    return 0.5 * math.erfc((others * asked - documents + 0.5) / (deviation * math.sqrt(2)))


def prefix_cache_of(users: Users, gpu: Gpu, memory: Memory) -> PrefixCache:
    """Return the prefix cache of a server.

    Raises:
        ValueError: the GPUs have no room for the weights, or none for a document beside them.

    """
    engine_gb = gpu.gpus_per_server * (memory.gpu_memory_gb * memory.gpu_memory_share - memory.reserved_gb)
    kv_gb = engine_gb - memory.weights_gb
    document_gb = memory.kv_bytes_per_token * memory.document_tokens / _GB
    if kv_gb < document_gb:
        least = ((memory.weights_gb + document_gb) / gpu.gpus_per_server + memory.reserved_gb) / memory.gpu_memory_share
        limit = f"must be at least {least:.1f} for the weights, a document and reserved_gb"
        msg = f"gpu_memory_gb: {limit}, got {memory.gpu_memory_gb:g}"
        raise ValueError(msg)
    typist, debounce_s = TypingModel(away_share=users.away_share), users.debounce_ms / 1000
    typing_share = users.typing_share
    if users.requests_per_session_hour is not None:
        typing_share = users.requests_per_session_hour / 3600 / typist.requests_per_s(debounce_s)
    curve = reuse_curve(typist, debounce_s)
    return PrefixCache(kv_gb, kv_gb / document_gb, memory.document_tokens, typing_share, curve)


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The first moments after a loss, in which users come to a server whose cache has none of their documents.

    All come at once, each with the next request. Its times are infinite if the server never catches up.
    """

    users: float
    """Users who type and come to one server."""
    longest_wait_s: float
    """Time to compute what has piled up at the worst moment."""
    over_after_s: float
    """When nothing is left of it."""


def cold_start(cache: PrefixCache, users: float, prefill_s: float, spare: float) -> ColdStart:
    """Return the cold start of a server to which `users` come.

    `prefill_s` is the time to compute a document, `spare` the share of its time in which the server has no other work.
    """
    longest_s = 0.0
    for seconds, asked in zip(_TIMES_S, cache.curve.asked, strict=True):
        work_s = users * asked * prefill_s - spare * seconds
        if work_s <= 0:
            return ColdStart(users, longest_s, seconds if longest_s else 0.0)
        longest_s = max(longest_s, work_s)
    return ColdStart(users, math.inf, math.inf)
