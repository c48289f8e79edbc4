"""The tokenizer, and the prompts that training and the server build alike."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from completion_server.core.request import Caller, Snippet
from completion_server.text.prompt.loading import load_prompt_builder
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.templates import EMBEDDED, FimOrder, Template
from draft_model.core import PipelineError
from draft_model.data.fim import Split, encode_split, split_at_random
from draft_model.data.tokenizer import (
    SPECIAL_TOKENS,
    PromptContext,
    TemplateEncoder,
    check_same_vocabulary,
    load_encoder,
    load_tokenizer,
    make_encoder,
    server_template,
    train_tokenizer,
)
from tests.unit.text.prompt.prompts import CURSOR, request_at


@given(st.text(max_size=200))
def test_any_text_comes_back(encoder: TemplateEncoder, text: str) -> None:
    assert encoder.decode(encoder.encode(text)) == text


def test_the_special_tokens_come_first_nothing_is_added_and_transformers_loads_what_is_saved(
    tokenizer: PreTrainedTokenizerFast, tokenizer_folder: Path, encoder: TemplateEncoder
) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4]
    assert tokenizer.eos_token == tokenizer.bos_token == tokenizer.pad_token == SPECIAL_TOKENS[encoder.end]
    loaded = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    assert loaded.is_fast
    assert loaded.encode("self.x = x\n", add_special_tokens=True) == encoder.encode("self.x = x\n")
    assert load_encoder(tokenizer_folder).encode("total(items)") == encoder.encode("total(items)")
    assert load_encoder(tokenizer_folder).template == server_template(tokenizer_folder) == EMBEDDED


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


def test_what_is_no_tokenizer_or_another_ones_is_a_clear_error(
    tokenizer_folder: Path, source: str, encoder: TemplateEncoder, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(PipelineError, match="the server builds no prompts"):
        server_template(tmp_path)
    with pytest.raises(PipelineError, match="no text to learn a tokenizer from"):
        train_tokenizer([])
    check_same_vocabulary(tokenizer_folder, tokenizer_folder)
    train_tokenizer([source.replace("self", "this")] * 4, 320).save_pretrained(str(tmp_path))
    with pytest.raises(PipelineError, match=r"tokens differ: '.+'.*takes its target's tokenizer"):
        check_same_vocabulary(tokenizer_folder, tmp_path)
    other = Template("other", FimOrder.PREFIX_FIRST, "<a>", "<|fim_suffix|>", "<b>")
    with pytest.raises(PipelineError, match="lacks <a>, <b> of the template other"):
        make_encoder(load_tokenizer(tokenizer_folder), other)
    assert encoder.holds_marker("x = '<|fim_middle|>'")
    assert not encoder.holds_marker("x = '<|'")


SUFFIX_FIRST: dict[str, Any] = {"template": "fim", "template_fields": {"order": "suffix_first"}}
NO_MIDDLE: dict[str, Any] = {"template": "fim", "template_fields": {"order": "suffix_first", "middle": ""}}
PREFIX_ONLY: dict[str, Any] = {"template": "prefix-only"}
EVERY_ORDER = [{}, SUFFIX_FIRST, NO_MIDDLE, PREFIX_ONLY]
EVERY_PLACE_OF_OTHER_FILES: list[dict[str, Any]] = [
    {},
    {"template": "embedded", "template_fields": {"path_at": "outside"}},
    {"template": "embedded", "template_fields": {"path_at": "inside"}},
    {"template": "embedded", "template_fields": {"path_at": "outside", "order": "suffix_first", "middle": ""}},
    {"template": "fim"},
    {"template": "fim", "template_fields": {"text_header": "+++++ {path}\n", "lines_behind": "all"}},
    PREFIX_ONLY,
]
LANGUAGES = {"a/b/c/d/own.py": "python", "own.rs": "rust", "own.lua": "lua", "a/Dockerfile": "dockerfile"}
OTHERS = (
    Snippet("one/deep/in/folders/first.py", "import os\n\n\ndef first():\n    return 1\n\n", 0.0),
    Snippet("a%20%20b/second.py", "class Second:\n    x = 2", 1.0),
)


def template_of(model: Path, settings: dict[str, Any]) -> Template:
    return server_template(model, PromptSettings(**settings))


def server_prompts(model: Path, settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[list[int]]:
    """Return the server's prompts for requests, given by their differences from an empty one. Nothing is cut."""
    size = 100_000
    settings = settings | {"max_prompt_tokens": size, "token_healing": False}
    builder = load_prompt_builder(str(model), max_prompt_tokens=size, settings=PromptSettings(**settings))
    empty = request_at(CURSOR, uri="", language_id="")
    callers = (Caller("ada", str(number)) for number in range(len(requests)))
    return [
        builder.build(replace(empty, caller=caller, **request)).token_ids
        for caller, request in zip(callers, requests, strict=True)
    ]


@pytest.mark.parametrize("settings", EVERY_PLACE_OF_OTHER_FILES)
def test_other_files_stand_where_the_server_puts_them(
    settings: dict[str, Any], tokenizer_folder: Path, source: str
) -> None:
    encoder = make_encoder(load_tokenizer(tokenizer_folder), template_of(tokenizer_folder, settings))
    split = split_at_random(source, Random(3))
    snippets = tuple(replace(each, uri=f"file:///{each.uri}") for each in OTHERS)
    requests = [
        {
            "prefix": split.before + split.typed, "suffix": split.after, "snippets": snippets,
            "document_uri": f"file:///{path}", "language_id": language,
        }
        for path, language in LANGUAGES.items()
    ]  # fmt: skip
    built = server_prompts(tokenizer_folder, settings, requests)
    contexts = [PromptContext(path, OTHERS) for path in LANGUAGES]
    assert built == [encoder.encode_prompt(split.before, split.typed, split.after, context) for context in contexts]
    assert encoder.encode_prompt(split.before, split.typed, split.after) not in built


@pytest.fixture
def code_llama(tmp_path: Path, source: str) -> Path:
    """A tokenizer of Code Llama's kind: a blank before every text, markers of its own."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<s>", "</s>", "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]
    lines = source.splitlines(keepends=True)
    backend.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "settings"),
    [*(("tokenizer_folder", each) for each in EVERY_ORDER), ("code_llama", {}), ("code_llama", PREFIX_ONLY)],
)
def test_prompts_are_token_for_token_those_of_the_server_with_its_blanks_before_texts(
    folder: str, settings: dict[str, Any], source: str, request: pytest.FixtureRequest
) -> None:
    model: Path = request.getfixturevalue(folder)
    encoder = make_encoder(load_tokenizer(model), template_of(model, settings))
    splits = [split_at_random(source, Random(seed)) for seed in range(30)]
    requests = [{"prefix": split.before + split.typed, "suffix": split.after} for split in splits]
    built = server_prompts(model, settings, requests)
    assert built == [encoder.encode_prompt(split.before, split.typed, split.after) for split in splits]
    assert encoder.decode(encoder.encode("  x y")) == "  x y"


def test_a_completion_ends_where_its_family_ends_it(code_llama: Path) -> None:
    tokenizer, template = load_tokenizer(code_llama), server_template(code_llama)
    encoder, vocabulary = make_encoder(tokenizer, template), tokenizer.get_vocab()
    assert encoder.end == vocabulary["▁<EOT>"]
    assert set(encoder.stops) == {vocabulary[token] for token in ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")}
    ids, middle_from = encode_split(encoder, Split("", "", "x", "y"))
    assert ids[middle_from:] == [vocabulary["x"], encoder.end]
