"""A prompt ends where the tokenizer would cut whatever follows, and a mask allows what may follow."""

import inspect
import json
import textwrap
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from completion_server.core.vocabulary import Vocabulary, text_tokens
from completion_server.text.prompt.tokens.healing import MAX_TOKENS, Healer
from completion_server.text.prompt.tokens.plaintext import PlainText, make_plain
from tests.support.examples import examples
from tests.support.vocabularies import FAMILIES

TYPESCRIPT = Path(__file__).parents[2] / "editors" / "vscode" / "src" / "extension.ts"
SOURCE = inspect.getsource(textwrap) + TYPESCRIPT.read_text(encoding="utf-8")
REAL = st.integers(0, len(SOURCE) - 200).map(lambda at: SOURCE[at : at + 200])
ODD = st.text("aäß'’ré ltvems\n \t(){}[]\"=.,;_ABC123测试ไทยက☺😀", min_size=2, max_size=24)
JOINS_LINE_BREAKS = {"starcoder2"}
"""Tokenizers with tokens that begin with a line break and go on."""
KNOWN = sorted(family for family in FAMILIES if family != "unknown")


@cache
def healing(family: str) -> tuple[PlainText, Vocabulary, dict[int, bytes], Healer]:
    plain = make_plain(FAMILIES[family]())
    tokens = text_tokens(json.loads(plain.tokenizer.to_str()))
    vocabulary = Vocabulary(tokens)
    return plain, vocabulary, tokens, Healer(plain, tokens)


@pytest.mark.parametrize("family", KNOWN)
@settings(max_examples=examples(4))
@given(text=st.one_of(REAL, ODD), share=st.floats(0, 1))
def test_the_tokens_of_the_whole_text_can_be_reached_from_any_cut(family: str, text: str, share: float) -> None:
    """All but cuts in a run of blanks, and behind line breaks that a token goes beyond, see `healing`."""
    plain, vocabulary, tokens, healer = healing(family)
    cut = 1 + int(share * (len(text) - 2))
    assume(plain.is_unchanged(text) and not (text[cut - 1].isspace() and text[cut].isspace()))
    left_out, num_left_out = healer.left_out(text[:cut])
    kept_text = text[: cut - len(left_out)]
    assert "\n" not in left_out
    assume(not (family in JOINS_LINE_BREAKS and kept_text.endswith("\n")))
    kept = plain.encode(kept_text).ids
    whole = plain.encode(text).ids
    assert whole[: len(kept)] == kept
    assert num_left_out == len(plain.encode(left_out).ids) <= MAX_TOKENS
    rest = left_out.encode()
    for token in whole[len(kept) :]:
        if not rest:
            break
        allowed = {*vocabulary.starting_with(rest), *vocabulary.beginnings_of(rest)}
        assert token in allowed
        rest = rest[len(tokens[token]) :]
    assert not rest


@pytest.mark.parametrize("family", sorted(FAMILIES))
@settings(max_examples=examples(0.5))
@given(start=st.one_of(ODD, st.sampled_from([" ", " re", "(", "é", "\n"])))
def test_the_vocabulary_finds_what_a_scan_finds(family: str, start: str) -> None:
    _plain, vocabulary, tokens, _healer = healing(family)
    text = start.encode()
    starting = {index for index, token in tokens.items() if token.startswith(text)}
    assert set(vocabulary.starting_with(text)) == starting
    assert vocabulary.extends(text) == any(len(tokens[index]) > len(text) for index in starting)
    assert set(vocabulary.beginnings_of(text)) == {i for i, token in tokens.items() if token and text.startswith(token)}


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("if mes", " mes"),
        ("return ", " "),
        ("x = foo(", "("),
        ('x = foo("', '("'),
        ("def f():\n    ", " "),
        ("def f():\n", ""),
        ("", ""),
    ],
)
def test_the_last_word_is_left_out_with_its_blank(text: str, left_out: str) -> None:
    assert healing("qwen")[3].left_out(text)[0] == left_out


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("text", ["x = 1\n", "x\n\n", "x = 1\n    ", " " * 5000, "x" + "\n" * 5000, "=" * 5000, "x ▁"])
def test_no_line_break_is_left_out_and_little_else(family: str, text: str) -> None:
    left_out, num_tokens = healing(family)[3].left_out(text)
    assert text.endswith(left_out)
    assert "\n" not in left_out
    assert len(left_out) <= 512
    assert num_tokens <= MAX_TOKENS


def test_a_word_that_no_tokens_say_is_kept() -> None:
    plain, _vocabulary, tokens, _healer = healing("qwen")
    lacking = {index: text for index, text in tokens.items() if b"q" not in text}
    assert Healer(plain, lacking).left_out("x = q") == ("", 0)


def test_a_word_of_many_tokens_is_cut_at_its_last_one() -> None:
    left_out, num_tokens = healing("qwen")[3].left_out("x = " + "qz" * 200)
    assert num_tokens == 1
    assert left_out in {"qz", "z"}
