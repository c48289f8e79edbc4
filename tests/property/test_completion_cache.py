"""The completion cache under arbitrary typing, against a model that compares whole texts and hashes none."""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from completion_server.core.outcome import CacheLevel, FinishReason
from completion_server.core.request import Caller, Mode, Request, Sampling
from completion_server.state.cache.cache import Lookup, TwoLevelCache
from completion_server.state.cache.keys import MAX_ANCHORS
from completion_server.state.cache.local import MAX_ENTRIES, Entry, Terms, bytes_of_anchor, bytes_of_entry
from completion_server.state.settings import CacheSettings
from tests.support.clocks import ManualClock
from tests.support.constants import with_constants
from tests.support.examples import examples
from tests.unit.state.cache.cache_parts import answer_of, make_keys, request_of

TTL_S = 10.0
NAME = bytes(24)
TEXTS = st.text(alphabet="a\n", max_size=12)
REASONS = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH])
CALLERS = [Caller(user, "s", tenant, is_verified=True) for tenant in ("acme", "other") for user in ("u", "v")]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"mode": Mode.SINGLE_LINE},
    {"sampling": Sampling(0.5, seed=1)},
    {"suffix": "\n"},
    {"caller": CALLERS[1]},
]
EDITS = st.one_of(
    st.tuples(st.just("type"), st.text(alphabet="a\n", min_size=1, max_size=2)),
    st.tuples(st.just("type along"), st.integers(1, 5)),
    st.tuples(st.just("type along"), st.integers(1, 12)),
    st.tuples(st.just("delete"), st.integers(1, 6)),
    st.tuples(st.just("retype"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 4.0, TTL_S])),
    st.tuples(st.just("vary"), st.integers(0, len(VARIANTS) - 1)),
    st.tuples(st.just("stay"), st.none()),
)
STEPS = st.lists(st.tuples(EDITS, TEXTS, REASONS), min_size=5, max_size=60)
"""After each edit the editor asks; the text and the reason are of the answer that is computed if none is known."""


@dataclass
class KnownText:
    """A completion in the model, with the whole text before its cursor."""

    prefix: str
    text: str
    reason: FinishReason
    expires_at: float

    @property
    def line_start(self) -> int:
        return self.prefix.rfind("\n") + 1

    @property
    def num_bytes(self) -> int:
        return bytes_of_entry(Entry(self.prefix[self.line_start :], self.text, self.reason, 0.0, 0, 0, 0.0))

    def left(self, prefix: str, terms: Terms) -> str | None:
        if not prefix.startswith(self.prefix):
            return None
        typed = prefix[len(self.prefix) :]
        if not typed:
            return self.text
        left = self.text[len(typed) :]
        is_served = (
            not terms.is_exact
            and self.text.startswith(typed)
            and left != ""
            and not (terms.is_single_line and "\n" in typed)
            and (self.reason is FinishReason.STOP or len(left) >= len(self.text) / 2)
            and typed.count("\n") < MAX_ANCHORS
        )
        return left if is_served else None


@dataclass
class Model:
    """Level 1, made of lists. A line is identified by all text before it."""

    max_bytes: int
    lines: list[tuple[tuple[int, str], list[KnownText]]] = field(default_factory=list)
    """The least recently used first."""

    @property
    def num_bytes(self) -> int:
        return sum(bytes_of_anchor(NAME) + sum(known.num_bytes for known in line) for _key, line in self.lines)

    def get(self, variant: int, prefix: str, terms: Terms, now: float) -> str | None:
        found = [
            (len(known.prefix), left, key)
            for key, line in self.lines
            for known in line
            if key[0] == variant and now < known.expires_at and (left := known.left(prefix, terms)) is not None
        ]
        if not found:
            return None
        _length, left, key = max(found)
        self.touch(key)
        return left

    def put(self, variant: int, known: KnownText, now: float) -> None:
        while self.lines and all(now >= each.expires_at for each in self.lines[0][1]):
            self.lines.pop(0)
        line = self.touch((variant, known.prefix[: known.line_start]))
        line[:] = [each for each in line if each.prefix != known.prefix] + [known]
        del line[:-MAX_ENTRIES]
        while self.num_bytes > self.max_bytes:
            self.lines.pop(0)

    def touch(self, key: tuple[int, str]) -> list[KnownText]:
        line = next((line for found, line in self.lines if found == key), [])
        self.lines = [each for each in self.lines if each[0] != key] + [(key, line)]
        return line


def look_up(cache: TwoLevelCache, request: Request) -> Lookup:
    lookup = cache.look_up_nowait(request)
    assert lookup is not None
    return lookup


class Editor:
    """A user who edits one document, and asks both the cache and the model."""

    def __init__(self, max_bytes: int) -> None:
        self.clock = ManualClock(1000.0)
        self.model = Model(max_bytes)
        cache_settings = with_constants(CacheSettings(local_bytes=max_bytes), local_ttl_s=TTL_S)
        self.cache = TwoLevelCache(cache_settings, self.clock, lambda _event: None, make_keys())
        self.document = self.longest = self.answer = ""
        self.variant = 0

    def edit(self, edit: tuple[str, object]) -> None:
        match edit:
            case ("type", str(text)):
                self.document += text
            case ("type along", int(number)):
                self.document += self.answer[:number]
            case ("delete", int(number)):
                self.document = self.document[:-number]
            case ("retype", int(number)) if self.longest.startswith(self.document):
                self.document += self.longest[len(self.document) :][:number]
            case ("wait", float(seconds)):
                self.clock.at += seconds
            case ("vary", int(variant)):
                self.variant = variant
        self.longest = max(self.document, self.longest, key=len)

    def ask(self, text: str, reason: FinishReason) -> None:
        request = request_of(self.document, **VARIANTS[self.variant])
        lookup, now = look_up(self.cache, request), self.clock.at
        expected = self.model.get(self.variant, self.document, Terms.of(request), now)
        assert (None if lookup.answer is None else lookup.answer.text) == expected
        event("hit" if lookup.answer is not None else "miss")
        if expected is None:
            lookup.keep(answer_of(text, reason))
            self.model.put(self.variant, KnownText(self.document, text, reason, now + TTL_S), now)
        self.answer = text if expected is None else expected


@settings(max_examples=examples(6))
@given(STEPS, st.sampled_from([900, 3000, 100_000]))
def test_typing_finds_what_a_comparison_of_whole_texts_finds(
    steps: list[tuple[tuple[str, object], str, FinishReason]], max_bytes: int
) -> None:
    editor = Editor(max_bytes)
    for edit, text, reason in steps:
        editor.edit(edit)
        editor.ask(text, reason)
        assert editor.cache.num_bytes == editor.model.num_bytes <= max_bytes
        assert editor.cache.num_entries == sum(len(line) for _key, line in editor.model.lines)


REQUESTS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from(["", "a", "ab", "a\nb"]), st.booleans()), min_size=1, max_size=40
)


@given(REQUESTS, st.booleans())
def test_nobody_gets_an_answer_of_another_scope(requests: list[tuple[int, str, bool]], is_tenant_wide: bool) -> None:
    callers = [*CALLERS, *(replace(each, user="", is_verified=False, stream=at + 1) for at, each in enumerate(CALLERS))]
    cache = TwoLevelCache(CacheSettings(), ManualClock(), lambda _event: None, make_keys(is_tenant_wide=is_tenant_wide))
    for number, prefix, is_single_line in requests:
        caller = callers[number]
        label = f"for {caller.tenant}" if is_tenant_wide else f"for caller {number}"
        request = request_of(prefix, caller=caller, mode=Mode.SINGLE_LINE if is_single_line else Mode.MULTI_LINE)
        lookup = look_up(cache, request)
        if lookup.answer is None:
            lookup.keep(answer_of(label))
        else:
            assert (lookup.answer.text, lookup.answer.level) == (label, CacheLevel.LOCAL)
