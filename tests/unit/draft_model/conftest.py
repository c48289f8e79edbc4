"""A corpus, a tokenizer and a preset small enough to train for a few steps in a test."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from completion_server.text.prompt.templates import EMBEDDED
from draft_model.core import Preset
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.readers import read_repositories
from draft_model.corpus.store import Corpus
from draft_model.data.shards import DataSettings, build_data
from draft_model.data.tokenizer import TemplateEncoder, make_encoder, train_tokenizer
from tests.unit.draft_model.tiny import PRESET, VOCAB_SIZE, different_source

MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"
SOURCE = '''import os


def total(items):
    """Add them up."""
    result = 0
    for item in items:
        result += item
    return result


class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def move(self, dx, dy):
        return Point(self.x + dx, self.y + dy)
'''


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads of so small a model mostly spin: a training took ten times the CPU time on busy cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def source() -> str:
    return SOURCE


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([SOURCE] * 4, VOCAB_SIZE)


@pytest.fixture(scope="session")
def encoder(tokenizer: PreTrainedTokenizerFast) -> TemplateEncoder:
    return make_encoder(tokenizer)


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture
def preset() -> Preset:
    return PRESET


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three repositories of files that share nothing, each with a licence."""
    root = tmp_path_factory.mktemp("sources")
    for name in ("one", "two", "three"):
        (root / name).mkdir()
        (root / name / "LICENSE").write_text(MIT, encoding="utf-8")
    for number in range(24):
        folder = root / ("one", "two", "three")[number % 3]
        (folder / f"module_{number}.py").write_text(different_source(number), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def corpus(repositories: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("made") / "corpus"
    settings = CorpusSettings(held_out_percent=0.0, held_out=("three",), num_parts=2)
    collect_corpus(read_repositories(repositories, (".py",)), out, settings)
    return Corpus(out)


@pytest.fixture(scope="session")
def data_settings() -> DataSettings:
    return DataSettings(num_tokens=4096, block_tokens=64, row_tokens=(64, 32), blocks_a_shard=32, seed=5)


@pytest.fixture(scope="session")
def data(
    corpus: Corpus, tokenizer_folder: Path, data_settings: DataSettings, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("made") / "data"
    build_data(corpus, tokenizer_folder, EMBEDDED, out, data_settings)
    return out
