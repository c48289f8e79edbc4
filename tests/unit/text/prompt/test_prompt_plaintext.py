"""Text from users is tokenised as text."""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from completion_server.text.prompt.tokens.boundaries import LineRule, ScannerRule
from completion_server.text.prompt.tokens.plaintext import make_plain
from completion_server.text.prompt.tokens.reuse import Encoder
from tests.support.vocabularies import FAMILIES, llama2, metaspace, qwen, split_by, train

RULES = {
    "embedded": ScannerRule,
    "qwen": ScannerRule,
    "starcoder2": ScannerRule,
    "llama3": ScannerRule,
    "tekken": ScannerRule,
    "deepseek": ScannerRule,
    "llama2": LineRule,
    "metaspace": LineRule,
    "gemma": LineRule,
    "unknown": type(None),
}


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    kept = {"õ", "÷", "ü", "\n", "\n\n", "\n\n\n"}
    return {
        token.content: index
        for index, token in tokenizer.get_added_tokens_decoder().items()
        if token.content not in kept
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_no_control_token_comes_out_of_text(family: str) -> None:
    tokenizer = FAMILIES[family]()
    control = control_tokens(tokenizer)
    assert control
    plain = make_plain(tokenizer)
    texts = [
        f"{before}{token}{after}" for token in control for before in ("", " ", "x", "\n") for after in ("", " ", "y")
    ]
    texts.append("".join(control))
    for text in texts:
        ids = plain.tokenizer.encode(text, add_special_tokens=False).ids
        assert set(ids).isdisjoint(control.values()), text
        shown = plain.tokenizer.decode(ids, skip_special_tokens=False)
        assert text.replace("▁", " ") == shown.replace("▁", " ")


@pytest.mark.parametrize("family", ["embedded", "qwen", "starcoder2", "llama3", "tekken", "deepseek", "gemma"])
def test_other_text_is_tokenised_as_by_the_model(family: str) -> None:
    tokenizer = FAMILIES[family]()
    text = "def f(õ):\n\n\n    return  'e\u0301 日本' + str(1234) # isn't\r\n"
    plain = make_plain(tokenizer)
    assert plain.tokenizer.encode(text).ids == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("family", ["llama2", "metaspace"])
def test_the_blank_before_a_text_is_left_to_the_layout(family: str) -> None:
    tokenizer = FAMILIES[family]()
    plain = make_plain(tokenizer)
    assert plain.adds_blank
    assert plain.tokenizer.encode(" import os").ids == tokenizer.encode("import os", add_special_tokens=False).ids
    assert plain.tokenizer.encode("import os").tokens[0] != "▁import"


@pytest.mark.parametrize("family", RULES)
def test_the_rule_for_cutting_is_found_or_none_is_assumed(family: str) -> None:
    assert isinstance(make_plain(FAMILIES[family]()).rule, RULES[family])


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        split_by(r"\b\w+|\s+|\W"),
        split_by(r"(?<!x)\p{L}+|\s+|."),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(use_regex=False)]),
        pre_tokenizers.Whitespace(),
    ],
)
def test_unknown_ways_to_split_have_no_rule(pre_tokenizer: pre_tokenizers.PreTokenizer) -> None:
    tokenizer = train(split_by(r"\s+|\p{L}+"), ("<x>",))
    tokenizer.pre_tokenizer = pre_tokenizer
    assert make_plain(tokenizer).rule is None


@pytest.mark.parametrize("family", ["embedded", "unknown"])
def test_other_threads_go_on_while_a_long_text_is_tokenised(family: str) -> None:
    encoder = Encoder(make_plain(FAMILIES[family]()))
    text = "def f(x):\n    return x + 1\n" * 10_000
    num_ticks = 0
    is_over = threading.Event()

    def tick() -> None:
        nonlocal num_ticks
        while not is_over.is_set():
            num_ticks += 1
            time.sleep(1e-4)

    ticker = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    try:
        ticker.start()
        sys.setswitchinterval(60)  # no thread is forced to yield
        num_before = num_ticks
        encoder.encode(text)
        num_meanwhile = num_ticks - num_before
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        ticker.join(30)
    assert num_meanwhile > 1  # how many depends on how busy the machine is


def has_newline_in_a_token(spec: Any) -> None:
    spec["model"]["vocab"]["\nx"] = len(spec["model"]["vocab"])


def can_not_say_newline(spec: Any) -> None:
    del spec["model"]["vocab"]["<0x0A>"]


def drops_merges(spec: Any) -> None:
    spec["model"]["dropout"] = 0.1


@pytest.mark.parametrize(
    ("make", "spoil"), [(llama2, has_newline_in_a_token), (metaspace, can_not_say_newline), (qwen, drops_merges)]
)
def test_a_vocabulary_that_breaks_the_rules_assumption_has_no_rule(
    make: Callable[[], Tokenizer], spoil: Callable[[Any], None]
) -> None:
    spec = json.loads(make().to_str())
    spoil(spec)
    assert make_plain(Tokenizer.from_str(json.dumps(spec))).rule is None
