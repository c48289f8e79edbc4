from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from completion_server.prompt.templates import EMBEDDED
from draft_model.core.errors import PipelineError
from draft_model.data.encoder import TemplateEncoder
from draft_model.data.tokenizer import (
    SPECIAL_TOKENS,
    check_same_vocabulary,
    load_encoder,
    load_tokenizer,
    make_encoder,
    train_tokenizer,
)


@given(st.text(max_size=200))
def test_any_text_comes_back(encoder: TemplateEncoder, text: str) -> None:
    assert encoder.decode(encoder.encode(text)) == text


def test_no_text_is_no_vocabulary() -> None:
    with pytest.raises(PipelineError, match="no text to learn a tokenizer from"):
        train_tokenizer([])


def test_the_special_tokens_come_first_and_nothing_is_added(
    tokenizer: PreTrainedTokenizerFast, encoder: TemplateEncoder
) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4]
    assert encoder.end == 0
    assert tokenizer("x")["input_ids"] == encoder.encode("x")
    assert tokenizer.eos_token == tokenizer.bos_token == tokenizer.pad_token == SPECIAL_TOKENS[0]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a  = 12\n", ["a", " ", " =", " ", "1", "2", "\n"]),
        ("f(x):\n\n    y", ["f", "(x", "):\n\n", "   ", " y"]),
        ("self.x", ["self", ".x"]),
    ],
)
def test_words_digits_punctuation_and_line_ends(
    tokenizer: PreTrainedTokenizerFast, text: str, pieces: list[str]
) -> None:
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in split] == pieces


def test_transformers_loads_what_is_saved(
    tokenizer: PreTrainedTokenizerFast, encoder: TemplateEncoder, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(str(tmp_path))
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.is_fast
    assert loaded.encode("self.x = x\n", add_special_tokens=True) == encoder.encode("self.x = x\n")
    assert make_encoder(load_tokenizer(tmp_path)).encode("total(items)") == encoder.encode("total(items)")


def test_a_folder_without_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_another_vocabulary_is_an_error_that_says_which_tokens_differ(
    tokenizer_folder: Path, source: str, tmp_path: Path
) -> None:
    check_same_vocabulary(tokenizer_folder, tokenizer_folder)
    train_tokenizer([source.replace("self", "this")] * 4, 320).save_pretrained(str(tmp_path))
    with pytest.raises(PipelineError, match=r"tokens differ: '.+'.*takes its target's tokenizer"):
        check_same_vocabulary(tokenizer_folder, tmp_path)


def test_our_own_tokenizer_has_our_own_layout(tokenizer_folder: Path) -> None:
    assert load_encoder(tokenizer_folder).template == EMBEDDED
