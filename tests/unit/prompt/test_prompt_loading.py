"""From a model's folder to prompts."""

import io
import json
from pathlib import Path

import pytest

from completion_server.core.errors import ConfigError
from completion_server.prompt.__main__ import main
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings
from tests.unit.prompt.prompts import CURSOR, builder_of, request_at


def test_a_folder_is_loaded_and_its_family_found(model: Path) -> None:
    builder = load_prompt_builder(str(model), max_prompt_tokens=128)
    assert builder.template_name == "embedded"
    assert builder.can_reuse_tokens
    request = request_at(f"import os\nos.{CURSOR}\n")
    assert builder.build(request) == builder_of("embedded", max_prompt_tokens=128).build(request)


def test_the_template_may_be_given(model: Path) -> None:
    settings = PromptSettings(template="prefix-only")
    assert load_prompt_builder(str(model), max_prompt_tokens=64, settings=settings).template_name == "prefix-only"
    builder = load_prompt_builder(str(model), template="fim", max_prompt_tokens=64, settings=settings)
    assert builder.template_name == "fim"
    replaced = {"name": "fim", "prefix": "<|fim_suffix|>", "suffix": "<|fim_prefix|>"}
    builder = load_prompt_builder(str(model), template=replaced, max_prompt_tokens=64)
    assert (builder.template.prefix, builder.template.suffix) == ("<|fim_suffix|>", "<|fim_prefix|>")


def test_missing_parts_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the tokenizer of .* can't be loaded"):
        load_prompt_builder(str(tmp_path), max_prompt_tokens=64)
    with pytest.raises(ConfigError, match="has no <fim_prefix>"):
        load_prompt_builder(str(model), template="starcoder2", max_prompt_tokens=64)


def test_requests_as_lines(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    requests = [
        {"prefix": "import os\nx", "suffix": "\n"},
        {"prefix": "import os\nx = ", "suffix": "\n"},
        {"prefix": "word, " * 100, "suffix": ""},
        {"prefix": "y", "suffix": "", "snippets": [{"uri": "b.py", "text": "a\nb\n"}], "mode": "multi_line"},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(request) + "\n" for request in requests)))
    main([str(model), "--settings", '{"max_prompt_tokens": 64}'])
    hello, first, second, refused, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert hello["template"]["name"] == "embedded"
    assert hello["template"]["order"] == "prefix_first"
    assert second["token_ids"][: len(first["token_ids"]) - 1] == first["token_ids"][:-1]
    assert 0 < second["num_tokenised"] < 5
    assert first["build_ms"] > 0
    assert "may have" in refused["error"]
    assert len(last["stop_token_ids"]) < len(first["stop_token_ids"])


@pytest.mark.parametrize("settings", ['{"max_prompt_tokens": 1}', '{"nonsense": 1}', "no json"])
def test_settings_that_can_not_work_end_it(model: Path, settings: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(model), "--settings", settings])
    assert ended.value.code
