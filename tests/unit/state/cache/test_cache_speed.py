"""Level 1 is asked on the event loop, before a request is submitted: it must cost next to nothing."""

import time

import pytest

from completion_server.core.clock import MonotonicClock
from completion_server.state.cache.cache import TwoLevelCache
from completion_server.state.settings import CacheSettings
from tests.unit.state.cache.cache_parts import answer_of, make_keys, request_of

NUM_LOOKUPS = 2000
LIMIT_S = 0.001


@pytest.mark.serial
def test_a_lookup_takes_at_most_a_millisecond() -> None:
    cache = TwoLevelCache(CacheSettings(local_ttl_s=3600), MonotonicClock(), lambda _event: None, make_keys())
    document = "    value = compute(item, 3)\n" * 107
    prefix, suffix = document[:3000], document[:1000]
    lookup = cache.look_up_nowait(request_of(prefix, suffix=suffix))
    assert lookup is not None
    lookup.keep(answer_of("0123456789"))
    seconds = []
    for number in range(NUM_LOOKUPS):
        typed = "0123456789"[: number % 10]
        request = request_of(prefix + typed, suffix=suffix)
        begin = time.perf_counter()
        found = cache.look_up_nowait(request)
        seconds.append(time.perf_counter() - begin)
        assert found is not None
        assert found.answer is not None
    assert sorted(seconds)[NUM_LOOKUPS * 99 // 100] < LIMIT_S
