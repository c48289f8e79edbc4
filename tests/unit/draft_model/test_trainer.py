"""The training loop and its checkpoints, also in processes that are stopped, killed, or several at once."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draft_model.core import PipelineError, Preset
from draft_model.data.shards import BlockSource
from draft_model.models import make_model
from draft_model.training.optim import Teacher
from draft_model.training.run import read_metrics
from draft_model.training.trainer import Budget, SavePoint, Trainer, TrainingProgress, run_fingerprint
from draft_model.training.world import World
from tests.support.disk import files_up_to
from tests.support.models import ROOT
from tests.support.redis_servers import wait_until

WAIT_S = 180.0


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
    assert (resumed.num_steps, resumed.num_tokens) == (24, 24 * 256)
    trainer(tmp_path / "cut", Budget(steps=24)).run(finished := Recorder())
    assert finished.seen == [], "nothing is left to do"


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


def test_a_disk_that_refuses_keeps_the_last_checkpoint_and_what_a_killed_process_left_goes(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer(tmp_path / "run", Budget(steps=2)).run(Recorder())
    before = (tmp_path / "run").read_bytes()
    (tmp_path / ".run.123.tmp").write_bytes(b"half a checkpoint")
    (tmp_path / ".other.123.tmp").write_bytes(b"of another run")
    with files_up_to(len(before) // 2), pytest.raises(PipelineError, match="File too large; nothing was changed"):
        trainer(tmp_path / "run", Budget(steps=4)).run(Recorder())
    assert (tmp_path / "run").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.123.tmp", "run"]


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


def test_training_lowers_the_loss_and_a_teacher_brings_the_draft_nearer_to_it(
    trainer: Callable[..., Trainer], preset: Preset, tmp_path: Path
) -> None:
    taught, first = make_model(preset.shape, 9), Recorder()
    taught.load_state_dict(trainer(tmp_path / "teacher", Budget(steps=40)).run(first).weights)
    assert first.seen[-1].loss < first.seen[0].loss - 0.5
    assert first.seen[0].divergence == 0.0
    recorder = Recorder()
    trainer(tmp_path / "draft", Budget(steps=30), teacher=Teacher(taught, 1.0)).run(recorder)
    assert recorder.seen[-1].divergence < recorder.seen[0].divergence / 2
    mixed_away = Recorder()
    trainer(tmp_path / "zero", Budget(steps=3), teacher=Teacher(taught, 0.0)).run(mixed_away)
    assert mixed_away.losses == first.losses[:3]


def command(data: Path, out: Path, *more: str, processes: int = 1) -> list[str]:
    launch = [sys.executable, "-m"]
    if processes > 1:
        launch += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    arguments = ["draft_model", "train", "--preset", "tiny", "--data", str(data), "--out", str(out), "--no-compile"]
    return [*launch, "tests.unit.draft_model.tiny", *arguments[1:], *more]


@contextmanager
def killed_at_the_end(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait(WAIT_S)


def test_a_terminated_run_leaves_nothing_half_written(data: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command(data, tmp_path / "run", "--steps", "100000"), cwd=ROOT)
    with killed_at_the_end(process):
        wait_until(lambda: process.poll() is not None or len(read_metrics(tmp_path / "run")) >= 2, WAIT_S)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM


@pytest.mark.full
@pytest.mark.parametrize("compile_flag", ["--no-compile", "--compile"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_flag: str
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    arguments = ("--steps", "40", "--checkpoint-minutes", "0", compile_flag)
    subprocess.run(command(data, tmp_path / "whole", *arguments), cwd=ROOT, check=True, capture_output=True)
    process = subprocess.Popen(command(data, tmp_path / "cut", *arguments), cwd=ROOT, stderr=subprocess.DEVNULL)
    with killed_at_the_end(process):
        wait_until(lambda: process.poll() is not None or len(read_metrics(tmp_path / "cut")) >= 8, WAIT_S)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait(WAIT_S) == -signal.SIGKILL
    before = read_metrics(tmp_path / "cut")
    assert 8 <= len(before) < 40
    subprocess.run(command(data, tmp_path / "cut", *arguments), cwd=ROOT, check=True, capture_output=True)
    same = ("step", "loss", "middle_loss", "grad_norm", "rate_scale", "num_tokens")
    cut, whole = ([[step[name] for name in same] for step in read_metrics(tmp_path / run)] for run in ("cut", "whole"))
    assert cut == whole
    assert bool(list((tmp_path / "code").rglob("*.cpp"))) == (compile_flag == "--compile")


@pytest.mark.full
def test_two_processes_train_the_same_as_one_and_take_each_others_checkpoints(data: Path, tmp_path: Path) -> None:
    def run(name: str, steps: int, processes: int, *more: str) -> tuple[list[float], list[float]]:
        """The losses, and the gradients' norms: both optimisers would hide gradients that are all twice as large."""
        arguments = command(data, tmp_path / name, "--steps", str(steps), *more, processes=processes)
        done = subprocess.run(arguments, cwd=ROOT, check=False, capture_output=True, timeout=100)
        assert done.returncode == 0, done.stderr[-3000:]
        metrics = read_metrics(tmp_path / name)
        return [step["loss"] for step in metrics], [step["grad_norm"] for step in metrics]

    def same(found: tuple[list[float], list[float]]) -> tuple[object, object]:
        return pytest.approx(found[0], abs=0.005), pytest.approx(found[1], rel=0.02)

    one, two = run("a", 8, 1), run("b", 8, 2)
    assert len(one[0]) == 8
    assert two == same(one)
    # Each goes on with the other's number of processes, and with a checkpoint that the main one alone has.
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TINY_APART", "1")
        resumed = run("a", 12, 2)
    assert len(resumed[0]) == 12
    assert resumed == same(run("b", 12, 1))
    assert not (tmp_path / "a-1" / "checkpoint.pt").exists()
    # A teacher is spread over them, too, and compiled layers are gathered as others are.
    teacher = ("--teacher", str(tmp_path / "a" / "model"))
    assert run("c", 4, 2, *teacher, "--compile") == same(run("d", 4, 1, *teacher))
