from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from draft_model.budget import Budget
from draft_model.data import BatchSource, CorpusText
from draft_model.errors import PipelineError
from draft_model.model import make_model
from draft_model.optim import is_hidden_matrix
from draft_model.presets import Preset
from draft_model.tokenizer import Encoder
from draft_model.train import Progress, SavePoint, Trainer, run_fingerprint


class Recorder:
    """Remembers what it is told; may interrupt the run after a number of steps, as a signal would."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.seen: list[Progress] = []
        self._stop_after = stop_after

    def step(self, progress: Progress) -> None:
        self.seen.append(progress)
        if self._stop_after == len(self.seen):
            raise KeyboardInterrupt


@pytest.fixture
def trainer(source: str, encoder: Encoder, preset: Preset) -> Callable[..., Trainer]:
    def make(path: Path, budget: Budget, step_s: float = 0.0) -> Trainer:
        settings = preset.train
        batches = BatchSource(CorpusText([source]), encoder, settings.batch_tokens, settings.row_tokens, settings.seed)
        ticks: Iterator[float] = (number * step_s for number in count())
        return Trainer(preset, batches, budget, SavePoint(path, "same"), clock=lambda: next(ticks))

    return make


def test_a_few_steps_learn_something(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    recorder = Recorder()
    result = trainer(tmp_path / "run", Budget(steps=30)).run(recorder)
    assert recorder.seen[-1].loss < recorder.seen[0].loss - 0.5
    assert result.num_steps == 30
    assert result.num_tokens == 30 * 128


def test_an_interrupted_run_ends_bit_for_bit_as_an_uninterrupted_one(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    whole = trainer(tmp_path / "whole", Budget(steps=8)).run(Recorder())
    # Every tick of this clock is long, so each step is checkpointed, except the one that the interruption hits.
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "cut", Budget(steps=8), step_s=1000.0).run(Recorder(stop_after=5))
    recorder = Recorder()
    resumed = trainer(tmp_path / "cut", Budget(steps=8)).run(recorder)
    assert recorder.seen[0].step == 5
    assert resumed.num_tokens == whole.num_tokens
    pairs = zip(whole.model.state_dict().items(), resumed.model.state_dict().items(), strict=True)
    assert all(name == other and torch.equal(left, right) for (name, left), (other, right) in pairs)


def test_a_finished_run_has_nothing_left_to_do(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer(tmp_path / "run", Budget(steps=2)).run(Recorder())
    recorder = Recorder()
    result = trainer(tmp_path / "run", Budget(steps=2)).run(recorder)
    assert recorder.seen == []
    assert result.num_steps == 2


def test_minutes_are_spent_by_the_clock_that_is_given(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    recorder = Recorder()
    trainer(tmp_path / "run", Budget(minutes=1), step_s=10.0).run(recorder)
    assert [progress.share for progress in recorder.seen] == pytest.approx([number / 6 for number in range(1, 7)])


def test_a_checkpoint_of_another_run_is_refused(
    trainer: Callable[..., Trainer], tmp_path: Path, source: str, encoder: Encoder, preset: Preset
) -> None:
    trainer(tmp_path / "run", Budget(steps=1)).run(Recorder())
    batches = BatchSource(CorpusText([source]), encoder, 128, (64,), 3)
    with pytest.raises(PipelineError, match="another corpus"):
        Trainer(preset, batches, Budget(steps=1), SavePoint(tmp_path / "run", "other"))
    (tmp_path / "run").write_bytes(b"not a checkpoint")
    with pytest.raises(PipelineError, match="not a checkpoint"):
        Trainer(preset, batches, Budget(steps=1), SavePoint(tmp_path / "run", "same"))


def test_the_fingerprint_changes_with_all_but_the_budget(preset: Preset) -> None:
    from dataclasses import replace

    name = run_fingerprint(preset, "vocab", "data")
    longer = replace(preset, train=replace(preset.train, minutes=99.0))
    faster = replace(preset, train=replace(preset.train, muon_lr=0.5))
    assert run_fingerprint(longer, "vocab", "data") == name
    assert len({name, run_fingerprint(faster, "vocab", "data"), run_fingerprint(preset, "other", "data")}) == 3


def test_muon_gets_the_matrices_of_the_layers_only(preset: Preset) -> None:
    chosen = [name for name, value in make_model(preset.shape, 1).named_parameters() if is_hidden_matrix(name, value)]
    assert len(chosen) == 7
    assert all("proj" in name for name in chosen)
