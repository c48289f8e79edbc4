"""The plain prompt and token healing, on small vocabularies."""

import pytest

from completion_server.prompt.templates import EMBEDDED, FAMILIES, PREFIX_ONLY, Template
from loadtest.bench.quality.contestants import plain_prompt
from loadtest.bench.quality.healing import TokenTexts, left_out
from tests.support.models import TARGET

MELLUM = next(each for each in FAMILIES if each.name == "mellum")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (EMBEDDED, "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"),
        (MELLUM, "<fim_suffix>b<fim_prefix>a<fim_middle>"),
        (PREFIX_ONLY, "a"),
    ],
)
def test_the_plain_prompt_has_all_text_before_and_after_the_cursor(template: Template, expected: str) -> None:
    assert plain_prompt(template, "a", "b") == expected


@pytest.mark.parametrize(
    ("rest", "allowed"),
    [("retu", {"r", "ret", "return"}), ("r", {"r", "ret", "return"}), ("u", {"u"}), ("tu", {"t"}), ("x", set())],
)
def test_tokens_go_on_with_the_text_that_was_left_out(rest: str, allowed: set[str]) -> None:
    texts = ["r", "ret", "", "return", "u", "t", "a"]
    assert {texts[token] for token in TokenTexts(texts).continuing(rest)} == allowed


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("    return se", " se"), ("foo(", "("), ("        ", "        "), ("", ""), ("x = é", ""), ("width", "width")],
)
def test_the_last_word_is_left_out_as_the_tokenizer_splits_words(typed: str, expected: str) -> None:
    from transformers import AutoTokenizer

    assert left_out(typed, AutoTokenizer.from_pretrained(TARGET)) == expected
