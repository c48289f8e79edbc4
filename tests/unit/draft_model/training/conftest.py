"""A trainer of the tiny preset with a clock of its own."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from draft_model.core.presets import Preset
from draft_model.data.blocks import BlockSource
from draft_model.training.budget import Budget
from draft_model.training.trainer import SavePoint, Trainer
from draft_model.training.world import World


@pytest.fixture
def trainer(data: Path, preset: Preset) -> Callable[..., Trainer]:
    def make(path: Path, budget: Budget, step_s: float = 0.0, **more: Any) -> Trainer:
        ticks: Iterator[float] = (number * step_s for number in count())
        saved = SavePoint(path, "same")
        return Trainer(preset, BlockSource(data, 3), budget, saved, World(), clock=lambda: next(ticks), **more)

    return make
