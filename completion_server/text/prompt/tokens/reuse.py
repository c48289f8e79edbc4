"""Tokenises a text that differs little from a text that was tokenised before.

The tokens before the first difference and behind the last one are reused, up to the nearest place at which the
tokenizer's rule allows a cut; only the text between is tokenised. The result equals that of tokenising the whole text.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass

from completion_server.text.prompt.tokens.boundaries import Pieces
from completion_server.text.prompt.tokens.plaintext import PlainText

_LOOKAHEAD = 48
"""Characters behind a change that are tokenised to find an old boundary; doubled until one is found."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text and its tokens. Immutable: may be shared between threads."""

    text: str
    ids: "array[int]"
    starts: "array[int]"
    """Character offsets at which it may be cut; empty where the tokenizer allows no cut."""
    firsts: "array[int]"
    """For each of them, the index of the first token from there on."""

    def num_tokens_before(self, offset: int) -> int:
        """Return how many tokens stand before a character offset; an estimate unless a cut is allowed there."""
        if offset >= len(self.text):
            return len(self.ids)
        if not self.starts:
            return offset * len(self.ids) // max(1, len(self.text))
        index = bisect_left(self.starts, offset)
        return self.firsts[index] if index < len(self.firsts) else len(self.ids)


EMPTY = Encoded("", array("I"), array("I"), array("I"))


class Encoder:
    """Tokenises segments of text. Holds no state between calls, so it may be used from several threads."""

    def __init__(self, plain: PlainText) -> None:
        self._plain = plain
        self._rule = plain.rule

    @property
    def can_reuse(self) -> bool:
        """Whether a rule for this tokenizer's boundaries is known."""
        return self._rule is not None

    def encode(self, text: str, previous: Encoded = EMPTY) -> tuple[Encoded, int]:
        """Return the tokens of `text`, and how many of them had to be computed."""
        if text == previous.text:
            return previous, 0
        if self._rule is None or not self._plain.is_unchanged(text):
            ids = array("I", self._plain.encode(text).ids)
            return Encoded(text, ids, array("I"), array("I")), len(ids)
        if not previous.starts:
            whole = self._scan(text)
            return Encoded(text, whole.ids, whole.starts, whole.firsts), len(whole.ids)
        return self._splice(text, previous)

    def _scan(self, text: str) -> Pieces:
        assert self._rule is not None
        return self._rule.pieces(text, self._plain.encode(text))

    def _splice(self, text: str, old: Encoded) -> tuple[Encoded, int]:
        assert self._rule is not None
        head = common_prefix(text, old.text)
        kept = self._rule.num_certain(old.text, old.starts, head)
        begin = old.starts[kept]
        tail = common_suffix(text, old.text, min(len(text), len(old.text)) - begin)
        changed_end = len(text) - tail
        reach = _LOOKAHEAD
        while True:
            end = min(len(text), changed_end + reach)
            part = text[begin:end]
            new = self._scan(part)
            if end == len(text):
                return _join(text, old, kept, new, len(new.starts), len(old.starts)), len(new.ids)
            meeting = self._meet(part, new, old, changed_end - begin, len(text) - len(old.text) - begin)
            if meeting:
                return _join(text, old, kept, new, *meeting), new.firsts[meeting[0]]
            reach *= 2

    def _meet(self, part: str, new: Pieces, old: Encoded, changed_end: int, shift: int) -> tuple[int, int] | None:
        """Return the first certain boundary of `new` behind the change that is also a boundary of the old text.

        `changed_end` is an offset in `part`; an old offset plus `shift` is one in `part`.
        """
        assert self._rule is not None
        last = self._rule.num_certain(part, new.starts, len(part))
        for index in range(bisect_left(new.starts, changed_end), last + 1):
            wanted = new.starts[index] - shift
            found = bisect_left(old.starts, wanted)
            if found < len(old.starts) and old.starts[found] == wanted:
                return index, found
        return None


def _join(text: str, old: Encoded, kept: int, new: Pieces, upto: int, resume: int) -> Encoded:
    """Put together the first `kept` old boundaries, `new` up to the boundary `upto`, and the old from `resume` on."""
    begin, first = old.starts[kept], old.firsts[kept]
    num_new = new.firsts[upto] if upto < len(new.firsts) else len(new.ids)
    ids = old.ids[:first] + new.ids[:num_new]
    starts = old.starts[:kept] + array("I", [begin + start for start in new.starts[:upto]])
    firsts = old.firsts[:kept] + array("I", [first + index for index in new.firsts[:upto]])
    if resume < len(old.starts):
        shift, moved = len(text) - len(old.text), len(ids) - old.firsts[resume]
        ids += old.ids[old.firsts[resume] :]
        starts += array("I", [start + shift for start in old.starts[resume:]])
        firsts += array("I", [index + moved for index in old.firsts[resume:]])
    return Encoded(text, ids, starts, firsts)


def common_prefix(one: "str | array[int]", other: "str | array[int]") -> int:
    """Return how many characters two texts share at their start, or two arrays how many numbers."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(one: str, other: str, limit: int) -> int:
    """Return how many characters two texts share at their end, at most `limit`."""
    low, high = 0, max(0, min(limit, len(one), len(other)))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low
