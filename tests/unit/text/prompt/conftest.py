"""A model folder with nothing but a tokenizer."""

import json
from pathlib import Path

import pytest

from tests.support.vocabularies import embedded


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as AutoTokenizer wants it."""
    folder = tmp_path_factory.mktemp("model")
    embedded().save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return folder
