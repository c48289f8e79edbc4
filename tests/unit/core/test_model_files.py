"""What a front end reads of a model, held against transformers, which it does without."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from completion_server.core.errors import ConfigError
from completion_server.core.model_files import context_length, load_tokenizer
from tests.support.models import TARGET

TEXT = "def f(x):\n\treturn 'é😀'  <|fim_prefix|><new>\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(TARGET / name, tmp_path)
    return tmp_path


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("has_new_token", [False, True])
@pytest.mark.parametrize("adds_special", [False, True])
def test_tokens_are_those_of_transformers(model: Path, has_new_token: bool, adds_special: bool) -> None:
    if has_new_token:
        size = load_tokenizer(str(model)).get_vocab_size()
        token = {"content": "<new>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
        change(model / "tokenizer_config.json", added_tokens_decoder={str(size): token | {"single_word": False}})
    expected = AutoTokenizer.from_pretrained(model).backend_tokenizer
    found = load_tokenizer(str(model))
    assert found.get_vocab(with_added_tokens=True) == expected.get_vocab(with_added_tokens=True)
    ids = [each.encode(TEXT, add_special_tokens=adds_special).ids for each in (found, expected)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"n_positions": 8192}, 8192), ({"text_config": {"max_position_embeddings": 64}, "n_positions": 1}, 64)],
)
def test_the_context_length_has_several_names(tmp_path: Path, config: dict[str, Any], expected: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_length(str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("read", "name", "text", "message"),
    [
        (context_length, "config.json", None, r"engine\.model: .* there is no config\.json"),
        (context_length, "config.json", "{}[", r"engine\.model: config\.json of .* can't be read"),
        (context_length, "config.json", '{"hidden_size": 1}', r"engine\.max_model_len: must be set"),
        (load_tokenizer, "tokenizer.json", None, r"there is no tokenizer\.json; .* make one"),
        (load_tokenizer, "tokenizer.json", "{}", r"the tokenizer of .* can't be loaded"),
    ],
)
def test_what_is_missing_or_broken_is_named(
    model: Path, read: Callable[[str], Any], name: str, text: str | None, message: str
) -> None:
    file = model / name
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(str(model))
