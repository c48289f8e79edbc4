"""Training in processes that are stopped, killed, or several at once."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draft_model.training.record import read_metrics

ROOT = Path(__file__).parents[4]


def command(data: Path, out: Path, *more: str, processes: int = 1) -> list[str]:
    launch = [sys.executable, "-m"]
    if processes > 1:
        launch += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    arguments = ["draft_model", "train", "--preset", "tiny", "--data", str(data), "--out", str(out), "--no-compile"]
    return [*launch, "tests.unit.draft_model.tiny", *arguments[1:], *more]


def test_a_terminated_run_leaves_nothing_half_written(data: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command(data, tmp_path / "run", "--steps", "100000"), cwd=ROOT)
    deadline = time.monotonic() + 60
    while len(read_metrics(tmp_path / "run")) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM


@pytest.mark.full
@pytest.mark.parametrize("compile_flag", ["--no-compile", "--compile"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_flag: str
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    arguments = ("--steps", "40", "--checkpoint-minutes", "0", compile_flag)
    subprocess.run(command(data, tmp_path / "whole", *arguments), cwd=ROOT, check=True, capture_output=True)
    process = subprocess.Popen(command(data, tmp_path / "cut", *arguments), cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(read_metrics(tmp_path / "cut")) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
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
