"""The training loop and its checkpoints."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draft_model.core import PipelineError, Preset
from draft_model.data.shards import BlockSource, TokenBlock
from draft_model.models.network import make_model
from draft_model.training.optim import Teacher
from draft_model.training.state import Budget
from draft_model.training.trainer import SavePoint, Trainer, TrainingProgress, run_fingerprint
from draft_model.training.world import World
from tests.support.disk import files_up_to


class Recorder:
    """Remembers the reported steps; may interrupt the run after a number of steps, as a signal would."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.seen: list[TrainingProgress] = []
        self.began_at: int | None = None
        self._stop_after = stop_after

    def begin(self, step: int) -> None:
        self.began_at = step

    def step(self, progress: TrainingProgress) -> None:
        self.seen.append(progress)
        if self._stop_after == len(self.seen):
            raise KeyboardInterrupt

    @property
    def losses(self) -> list[tuple[float, float, float]]:
        return [(progress.loss, progress.middle_loss, progress.grad_norm) for progress in self.seen]


def test_a_few_steps_learn_something(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    recorder = Recorder()
    result = trainer(tmp_path / "run", Budget(steps=30)).run(recorder)
    assert recorder.seen[-1].loss < recorder.seen[0].loss - 0.5
    assert (result.num_steps, result.num_tokens) == (30, 30 * 256)


def test_an_interrupted_run_goes_on_bit_for_bit_also_in_mid_epoch(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    # An epoch is 16 steps: the run ends in its second one, and is cut in the middle of each.
    whole, parts = Recorder(), Recorder()
    uninterrupted = trainer(tmp_path / "whole", Budget(steps=24)).run(whole)
    for stop_after in (6, 14):
        with pytest.raises(KeyboardInterrupt):
            # Every tick of this clock is long, so each step is checkpointed, except the one that is interrupted.
            trainer(tmp_path / "cut", Budget(steps=24), step_s=1000.0).run(recorder := Recorder(stop_after))
        parts.seen += recorder.seen[:-1]
    resumed = trainer(tmp_path / "cut", Budget(steps=24)).run(last := Recorder())
    parts.seen += last.seen
    assert last.began_at == 18
    assert parts.losses == whole.losses
    assert resumed.weights.keys() == uninterrupted.weights.keys()
    assert all(torch.equal(resumed.weights[name], value) for name, value in uninterrupted.weights.items())


def test_a_finished_run_has_nothing_left_to_do(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer(tmp_path / "run", Budget(steps=2)).run(Recorder())
    recorder = Recorder()
    assert trainer(tmp_path / "run", Budget(steps=2)).run(recorder).num_steps == 2
    assert recorder.seen == []


def test_minutes_are_spent_by_the_clock_that_is_given(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    recorder = Recorder()
    trainer(tmp_path / "run", Budget(minutes=1), step_s=10.0).run(recorder)
    assert [progress.share for progress in recorder.seen] == pytest.approx([number / 6 for number in range(1, 7)])


def test_a_checkpoint_of_another_run_is_refused(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer(tmp_path / "run", Budget(steps=1)).run(Recorder())
    stored = torch.load(tmp_path / "run", weights_only=True)
    torch.save(stored | {"fingerprint": "other"}, tmp_path / "run")
    with pytest.raises(PipelineError, match="other data, another shape or settings"):
        trainer(tmp_path / "run", Budget(steps=1))
    (tmp_path / "run").write_bytes(b"not a checkpoint")
    with pytest.raises(PipelineError, match="not a checkpoint"):
        trainer(tmp_path / "run", Budget(steps=1))


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer(tmp_path / "run", Budget(steps=3)).run(Recorder())
    stored = torch.load(tmp_path / "run")
    next(iter(stored["model"].values())).fill_(float("nan"))
    torch.save(stored, tmp_path / "run")
    before = (tmp_path / "run").read_bytes()
    broken = trainer(tmp_path / "run", Budget(steps=9))
    with pytest.raises(PipelineError, match=r"the loss is nan .* at step 4; the checkpoint of step 3 is intact"):
        broken.run(Recorder())
    assert (tmp_path / "run").read_bytes() == before


def test_a_disk_that_refuses_keeps_the_last_checkpoint(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer(tmp_path / "run", Budget(steps=2)).run(Recorder())
    before = (tmp_path / "run").read_bytes()
    with files_up_to(len(before) // 2), pytest.raises(PipelineError, match="File too large; nothing was changed"):
        trainer(tmp_path / "run", Budget(steps=4)).run(Recorder())
    assert (tmp_path / "run").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_step_that_does_not_divide_is_refused(data: Path, preset: Preset, tmp_path: Path) -> None:
    odd = replace(preset, train=replace(preset.train, batch_tokens=100))
    with pytest.raises(PipelineError, match="does not divide into blocks of 64"):
        Trainer(odd, BlockSource(data, 3), Budget(steps=1), SavePoint(tmp_path / "run", "same"), World())


def test_the_fingerprint_changes_with_all_but_the_budget(preset: Preset) -> None:
    name = run_fingerprint(preset, "data")
    longer = replace(preset, train=replace(preset.train, minutes=99.0))
    faster = replace(preset, train=replace(preset.train, muon_lr=0.5))
    assert run_fingerprint(longer, "data") == name
    others = {run_fingerprint(faster, "data"), run_fingerprint(preset, "other"), run_fingerprint(preset, "data", "t")}
    assert len({name, *others}) == 4


def test_learning_from_a_teacher_brings_the_draft_nearer_to_it(
    trainer: Callable[..., Trainer], preset: Preset, data: Path, tmp_path: Path
) -> None:
    taught = make_model(preset.shape, 9)
    taught.load_state_dict(trainer(tmp_path / "teacher", Budget(steps=40)).run(Recorder()).weights)
    recorder = Recorder()
    trainer(tmp_path / "draft", Budget(steps=30), teacher=Teacher(taught, 1.0)).run(recorder)
    assert recorder.seen[-1].divergence < recorder.seen[0].divergence / 2
    plain = Recorder()
    trainer(tmp_path / "plain", Budget(steps=3)).run(plain)
    assert plain.seen[0].divergence == 0.0
    mixed_away = Recorder()
    trainer(tmp_path / "zero", Budget(steps=3), teacher=Teacher(taught, 0.0)).run(mixed_away)
    assert mixed_away.losses == plain.losses


def test_a_block_comes_from_the_source(data: Path) -> None:
    assert isinstance(BlockSource(data, 3).block(0), TokenBlock)
    assert json.loads((data / "data.json").read_text())["vocab_size"] == 320
