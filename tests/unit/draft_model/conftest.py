"""A corpus, a tokenizer and a preset small enough to train for a few steps in a test."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from draft_model.corpus import is_held_out
from draft_model.presets import Preset, Shape, TrainSettings
from draft_model.tokenizer import Encoder, train_tokenizer

VOCAB_SIZE = 320
VERBS = ("read", "write", "open", "close", "count", "merge", "split", "parse", "render", "send")
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


@pytest.fixture(scope="session")
def source() -> str:
    return SOURCE


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([SOURCE] * 4, VOCAB_SIZE)


@pytest.fixture(scope="session")
def encoder(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    return Encoder(tokenizer)


@pytest.fixture
def preset() -> Preset:
    shape = Shape(1, 32, 64, 2, 2, head_dim=16, vocab_size=VOCAB_SIZE, context_tokens=64)
    settings = TrainSettings(
        minutes=1.0, batch_tokens=128, micro_tokens=64, row_tokens=(64, 32), warmup_steps=2, seed=3
    )
    return Preset("tiny", shape, settings)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    """Twenty different files to learn from, and one whose name says that it is held out."""
    folder = tmp_path / "sources"
    folder.mkdir()
    names = [f"module_{number}.py" for number in range(400)]
    held_out = next(name for name in names if is_held_out("sources", name))
    learnt = [name for name in names if not is_held_out("sources", name)][:20]
    for number, name in enumerate([held_out, *learnt]):
        (folder / name).write_text(different_source(number), encoding="utf-8")
    return folder


def different_source(number: int) -> str:
    """A module that shares no line with the others."""
    name = "".join("abcdefghij"[int(digit)] for digit in f"{number:03d}")
    functions = [f"def {verb}_{name}(value_{name}):\n    return {verb}(value_{name}, self)\n" for verb in VERBS]
    return "\n\n".join(functions)
