"""The layouts are those of the server: its own process says so, and builds the same tokens."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from draft_model.data.fim import split_at_random
from draft_model.data.layouts import EMBEDDED, Layout, LayoutEncoder, ask_server
from draft_model.data.tokenizer import load_tokenizer, make_encoder
from draft_model.errors import PipelineError

SUFFIX_FIRST: dict[str, Any] = {"template": "fim", "template_fields": {"order": "suffix_first"}}
NO_MIDDLE: dict[str, Any] = {"template": "fim", "template_fields": {"order": "suffix_first", "middle": ""}}
PREFIX_ONLY: dict[str, Any] = {"template": "prefix-only"}
EVERY_ORDER = [{}, SUFFIX_FIRST, NO_MIDDLE, PREFIX_ONLY]


def ask_for_prompts(model: Path, settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[list[int]]:
    command = [sys.executable, "-m", "completion_server.prompt", str(model), "--settings", json.dumps(settings)]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line)["token_ids"] for line in done.stdout.splitlines()[1:]]


def test_the_embedded_layout_is_the_one_that_the_server_finds(tokenizer_folder: Path) -> None:
    assert ask_server(tokenizer_folder) == EMBEDDED


@pytest.mark.parametrize("settings", EVERY_ORDER)
def test_prompts_are_token_for_token_those_of_the_server(
    settings: dict[str, Any], tokenizer_folder: Path, source: str
) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    encoder = make_encoder(tokenizer, ask_server(tokenizer_folder, settings))
    splits = [split_at_random(source, Random(seed)) for seed in range(40)]
    requests = [
        {"prefix": split.before + split.typed, "suffix": split.after, "session": str(number)}
        for number, split in enumerate(splits)
    ]
    # So large that neither side is cut.
    built = ask_for_prompts(tokenizer_folder, settings | {"max_prompt_tokens": 100_000}, requests)
    assert built == [encoder.encode_prompt(split.before, split.typed, split.after) for split in splits]


def test_a_tokenizer_that_the_server_refuses_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="the server builds no prompts"):
        ask_server(tmp_path)


def test_missing_markers_are_named(encoder: LayoutEncoder, tokenizer_folder: Path) -> None:
    other = Layout("other", "prefix_first", "<a>", "<|fim_suffix|>", "<b>", "", is_typed_line_only=False)
    with pytest.raises(PipelineError, match="lacks <a>, <b> of the layout other"):
        make_encoder(load_tokenizer(tokenizer_folder), other)
    assert encoder.holds_marker("x = '<|fim_middle|>'")
    assert not encoder.holds_marker("x = '<|'")
