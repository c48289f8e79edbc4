"""Reusing the tokens of an earlier text equals tokenising the whole text, for every kind of tokenizer."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from completion_server.text.prompt.tokens.plaintext import make_plain
from completion_server.text.prompt.tokens.reuse import EMPTY, Encoder, common_prefix, common_suffix
from tests.support.examples import examples
from tests.support.vocabularies import FAMILIES

PIECES = st.sampled_from(
    [
        *("\n", "\r\n", "\r", "\n\n\n", " ", "    ", "\t", "  \n", "\u3000", "\x0c", "\x1c", "\u2028"),
        *("'", "'r", "'re", "e", "'LL", "don't", "x", "self.value", "HTTPResponse", "ABC", "class A:"),
        *("def f(x):\n    ",),
        *("0", "12", "1234567", "3.14", "(", ")", "):\n", "//", "/*", "*/\n", "->", "!=", "{}\n\n", "####", '"""'),
        *("é", "e\u0301", "\u0301", "日本語", "ü", "õ", "÷", "ﬁ", "😀", "👩‍👩‍👧", "\u200b", "\u00a0", "ß", "Ǆ", "ٳ"),
        *("½",),
        *("<|fim_middle|>", "<fim_prefix>", "</s>", "[SUFFIX]", "▁<PRE>", "<｜fim▁hole｜>", "<|endoftext|>", "▁"),
        *("<0x0A>",),
        *("return None\n", "import os\n", "        if x:\n            y = 1\n", "# a comment, with words\n", "<table>"),
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)
LATE = st.sampled_from(["'", "'r", "'re", "x'LL", "'d ", "\n    \n", "   x", "\t\ty", "12 3456", "e\u0301", "</", "s>"])
"""Text whose last character may change the words before it."""
EDITS = st.lists(
    st.tuples(st.floats(0, 1) | st.just(1.0), st.integers(0, 12), TEXTS | PIECES | LATE), min_size=1, max_size=8
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=examples(0.5), suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS, edits=EDITS)
def test_any_edit(family: str, text: str, edits: list[tuple[float, int, str]]) -> None:
    plain = make_plain(FAMILIES[family]())
    encoder = Encoder(plain)
    encoded, _ = encoder.encode(text)
    for place, num_deleted, inserted in edits:
        at = int(place * len(text))
        text = text[:at] + inserted + text[at + num_deleted :]
        encoded, num_computed = encoder.encode(text, encoded)
        expected = plain.tokenizer.encode(text, add_special_tokens=False)
        assert encoded.ids.tolist() == expected.ids
        assert 0 <= num_computed <= max(len(expected.ids) + 64, 2 * len(expected.ids))
        assert list(encoded.starts) == sorted(set(encoded.starts))
        assert len(encoded.starts) == len(encoded.firsts)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "unknown"])
@settings(max_examples=examples(0.3), suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS)
def test_a_text_may_be_cut_at_any_boundary(family: str, text: str) -> None:
    """What is claimed of a boundary, without the code that uses it: the text behind it is tokenised the same alone."""
    plain = make_plain(FAMILIES[family]())
    encoded, _ = Encoder(plain).encode(text, EMPTY)
    for start, first in zip(encoded.starts, encoded.firsts, strict=True):
        assert plain.tokenizer.encode(text[start:], add_special_tokens=False).ids == encoded.ids[first:].tolist()


@given(one=TEXTS, other=TEXTS, shared=TEXTS)
def test_common_parts(one: str, other: str, shared: str) -> None:
    head = common_prefix(shared + one, shared + other)
    assert head >= len(shared)
    assert (shared + one)[:head] == (shared + other)[:head]
    assert (shared + one)[head : head + 1] != (shared + other)[head : head + 1] or not (shared + one)[head:]
    tail = common_suffix(one + shared, other + shared, 10_000)
    assert tail >= len(shared)
    assert (one + shared)[len(one + shared) - tail :] == (other + shared)[len(other + shared) - tail :]
