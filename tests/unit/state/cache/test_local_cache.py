"""Level 1: completions in memory, with their bounds."""

import os
import tracemalloc

from completion_server.state.cache.entry import Entry, Terms
from completion_server.state.cache.keys import Anchor
from completion_server.state.cache.local import MAX_ENTRIES, LocalCache, bytes_of_anchor, bytes_of_entry
from tests.unit.state.cache.cache_parts import entry_of

ANY = Terms()
ONE_BYTES = bytes_of_anchor(b"a") + bytes_of_entry(entry_of("", "text"))


def get(cache: LocalCache, name: bytes, tail: str, now: float = 0.0) -> str | None:
    found = cache.get(tail, [Anchor(0, name)], ANY, now)
    return None if found is None else found.text


def test_the_completion_nearest_to_the_cursor_is_returned() -> None:
    cache = LocalCache(10_000, 10.0)
    for entry in (entry_of("d", "ef f"), entry_of("def", " g"), entry_of("de", "f h")):
        assert cache.put(b"a", entry, 0.0)
    assert get(cache, b"a", "d") == "ef f"
    assert get(cache, b"a", "de") == "f h"
    assert get(cache, b"a", "def") == " g"
    assert get(cache, b"a", "def f") is None
    assert get(cache, b"b", "d") is None


def test_nearer_anchors_go_first() -> None:
    cache = LocalCache(10_000, 10.0)
    cache.put(b"far", entry_of("if x:", "\n    y()"), 0.0)
    anchors = [Anchor(6, b"near"), Anchor(0, b"far")]
    found = cache.get("if x:\n   ", anchors, ANY, 0.0)
    assert found is not None
    assert found.text == " y()"
    cache.put(b"near", entry_of("  ", "  z()"), 0.0)
    found = cache.get("if x:\n   ", anchors, ANY, 0.0)
    assert found is not None
    assert found.text == " z()"


def test_a_completion_has_its_time() -> None:
    cache = LocalCache(10_000, 10.0)
    cache.put(b"a", entry_of("", "text"), 5.0)
    assert get(cache, b"a", "", 14.9) == "text"
    assert get(cache, b"a", "", 15.0) is None
    cache.sweep(15.0)
    assert (cache.num_bytes, cache.num_entries) == (0, 0)


def test_the_least_recently_used_anchor_is_dropped_first() -> None:
    cache = LocalCache(2 * ONE_BYTES, 10.0)
    for name in (b"a", b"b"):
        cache.put(name, entry_of("", "text"), 0.0)
    assert get(cache, b"a", "") == "text"
    cache.put(b"c", entry_of("", "text"), 0.0)
    assert [get(cache, name, "") for name in (b"a", b"b", b"c")] == ["text", None, "text"]
    assert (cache.num_bytes, cache.num_entries) == (2 * ONE_BYTES, 2)


def test_a_cache_without_memory_keeps_nothing() -> None:
    cache = LocalCache(0, 10.0)
    cache.put(b"a", entry_of("", "text"), 0.0)
    assert get(cache, b"a", "") is None
    assert (cache.num_bytes, cache.num_entries) == (0, 0)


def test_an_anchor_keeps_its_newest_completions() -> None:
    cache = LocalCache(100_000, 10.0)
    for number in range(MAX_ENTRIES + 1):
        cache.put(b"a", entry_of(f"{number} ", "text"), 0.0)
    assert cache.num_entries == MAX_ENTRIES
    assert get(cache, b"a", "0 ") is None
    assert get(cache, b"a", "1 ") == "text"


def test_a_completion_for_the_same_cursor_takes_the_place_of_the_older() -> None:
    cache = LocalCache(100_000, 10.0)
    assert cache.put(b"a", entry_of("x", "old"), 0.0)
    assert cache.put(b"a", entry_of("x", "newer"), 1.0)
    assert not cache.put(b"a", entry_of("x", "newer"), 2.0)
    assert (get(cache, b"a", "x", 11.0), cache.num_entries) == ("newer", 1)


def test_the_counted_bytes_are_those_that_python_takes() -> None:
    def fill(num_anchors: int, num_entries: int) -> LocalCache:
        cache = LocalCache(10**9, 10.0)
        for number in range(num_anchors):
            name = os.urandom(24)
            for tail in range(num_entries):
                text = f"return {number} + {tail} * value_of(it)"
                cache.put(name, Entry(f"{number}{tail}", text, entry_of("", "").reason, 0.1 + tail, 300, 400, 0.5), 0.1)
        return cache

    for num_entries in (1, 3, MAX_ENTRIES):
        tracemalloc.start()
        try:
            cache = fill(2000, num_entries)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 0.8 * taken < cache.num_bytes < 1.3 * taken
