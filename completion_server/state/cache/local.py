"""Kept completions, the decision whether one answers a request, and level 1 of the cache: bounded, in memory. Pure.

A completion is found by an anchor: a place shortly before the cursor, most often the start of its line. The name of the
anchor covers all text before it; the text between the anchor and the cursor, the tail, is compared here. So a user who
types along, or deletes and types again, finds the same completions.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from sys import getsizeof

from completion_server.core.outcome import CachedAnswer, CacheLevel, FinishReason
from completion_server.core.request import Mode, Request
from completion_server.state.cache.keys import Anchor

_LINE_BREAKS = ("\n", "\r")

MAX_ENTRIES = 8
"""Completions of one anchor, each for another tail; the oldest goes first."""

_ANCHOR_BYTES = 300
"""Memory of an anchor without its name and its completions: its places in two dictionaries, one of them its own."""
_ENTRY_BYTES = 300
"""Memory of a completion without its texts: the objects, their numbers, and a place in the anchor's dictionary."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A completion that was computed whole."""

    tail: str
    """The text between the anchor and the cursor for which it was computed."""
    text: str
    """The completion, after the text rules."""
    reason: FinishReason
    """STOP or LENGTH."""
    made_at: float
    """Unix seconds."""
    num_prompt_tokens: int
    num_completion_tokens: int
    engine_s: float
    """Seconds of prefill and decode."""

    def answer(self, level: CacheLevel) -> CachedAnswer:
        """Return the completion as the answer to a request; it was found in `level` of the cache."""
        return CachedAnswer(self.text, self.reason, level, self.num_prompt_tokens, self.num_completion_tokens)

    def after(self, tail: str, terms: "Terms") -> "Entry | None":
        """Return the part of the completion behind a request's tail, with its share of the cost; None if it has none.

        The text that was typed since must be the beginning of the completion. Something of the completion must be
        left, and half of it if the token limit ended it: the rest alone would end too soon.
        """
        if not tail.startswith(self.tail):
            return None
        num_typed = len(tail) - len(self.tail)
        if not num_typed:
            return self
        typed, left = tail[len(self.tail) :], self.text[num_typed:]
        if terms.is_exact or not left or not self.text.startswith(typed):
            return None
        if terms.is_single_line and any(each in typed for each in _LINE_BREAKS):
            return None
        if self.reason is FinishReason.LENGTH and 2 * len(left) < len(self.text):
            return None
        share = len(left) / len(self.text)
        num_tokens, engine_s = max(1, round(self.num_completion_tokens * share)), self.engine_s * share
        return replace(self, tail=tail, text=left, num_completion_tokens=num_tokens, engine_s=engine_s)


@dataclass(frozen=True, slots=True)
class Terms:
    """The part of a request that decides how far along a completion may be typed."""

    is_single_line: bool = False
    """Whether the completion ends with the line, so that it serves no request behind it."""
    is_exact: bool = False
    """Whether the completion is a sample, which its seed repeats only from the same cursor on."""

    @classmethod
    def of(cls, request: Request) -> "Terms":
        """Return the terms of a request."""
        return cls(request.mode is Mode.SINGLE_LINE, bool(request.sampling.temperature))


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: Entry
    expires_at: float


class LocalCache:
    """Kept completions by anchor. All times are clock seconds."""

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        """Keep completions for `ttl_s`, in at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._anchors: OrderedDict[bytes, dict[str, _Kept]] = OrderedDict()
        """By name; in it by tail, the oldest completion first."""
        self.num_bytes = 0
        """Estimated memory of all that is kept."""
        self.num_entries = 0
        """Completions that are kept, those whose time is over included."""

    def get(self, prefix: str, anchors: Sequence[Anchor], terms: Terms, now: float) -> Entry | None:
        """Return what a kept completion has left for a request; see `Entry.after`.

        Of several completions the one that was computed nearest to the cursor is returned: it has seen the most text.
        `anchors` are those of `prefix`, the nearest to the cursor first.
        """
        for anchor in anchors:
            kept = self._anchors.get(anchor.name)
            if kept is None:
                continue
            tail = prefix[anchor.offset :]
            lefts = (
                (len(each.entry.tail), left)
                for each in kept.values()
                if now < each.expires_at and (left := each.entry.after(tail, terms)) is not None
            )
            best = max(lefts, key=lambda pair: pair[0], default=None)
            if best is not None:
                self._anchors.move_to_end(anchor.name)
                return best[1]
        return None

    def put(self, name: bytes, entry: Entry, now: float) -> bool:
        """Keep a completion of the anchor `name`. Return False if the same one is kept already."""
        self.sweep(now)
        kept = self._anchors.get(name)
        if kept is None:
            kept = self._anchors[name] = {}
            self.num_bytes += bytes_of_anchor(name)
        self._anchors.move_to_end(name)
        older = kept.pop(entry.tail, None)
        if older is not None:
            self._forget(older)
        kept[entry.tail] = _Kept(entry, now + self._ttl_s)
        self.num_bytes += bytes_of_entry(entry)
        self.num_entries += 1
        if len(kept) > MAX_ENTRIES:
            self._forget(kept.pop(next(iter(kept))))
        while self.num_bytes > self._max_bytes:
            self._drop_first()
        return older is None or now >= older.expires_at or older.entry.text != entry.text

    def sweep(self, now: float) -> None:
        """Drop the least recently used anchors, as long as the time of all their completions is over."""
        while self._anchors:
            kept = next(iter(self._anchors.values()))
            if any(now < each.expires_at for each in kept.values()):
                return
            self._drop_first()

    def _drop_first(self) -> None:
        name, kept = self._anchors.popitem(last=False)
        self.num_bytes -= bytes_of_anchor(name)
        for each in kept.values():
            self._forget(each)

    def _forget(self, kept: _Kept) -> None:
        self.num_bytes -= bytes_of_entry(kept.entry)
        self.num_entries -= 1


def bytes_of_anchor(name: bytes) -> int:
    """Return the memory that an anchor takes without its completions."""
    return _ANCHOR_BYTES + getsizeof(name)


def bytes_of_entry(entry: Entry) -> int:
    """Return the memory that a completion takes."""
    return _ENTRY_BYTES + getsizeof(entry.tail) + getsizeof(entry.text)
