"""A run in its folder: resume, records, refusals, teachers, starts, and several processes."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback

from draft_model.core import PipelineError, Preset, locked
from draft_model.data.tokenizer import load_tokenizer
from draft_model.models import export_model, load_model, make_model
from draft_model.training import run as module
from draft_model.training.run import Lineage, last_checkpoint, train
from tests.support.models import ROOT, TARGET
from tests.support.redis_servers import wait_until

WAIT_S = 180.0
WEIGHTS = "model/model.safetensors"
SAME = ("step", "loss", "text_loss", "middle_loss", "grad_norm", "learning_rate")

Run = Callable[..., Path]


def steps_of(out: Path) -> list[dict[str, Any]]:
    """The records of all steps, from the last checkpoint."""
    state = json.loads(Path(last_checkpoint(out) or "", "trainer_state.json").read_text())
    return [record for record in state["log_history"] if "loss" in record]


def tokens(steps: int) -> dict[str, int]:
    return {"num_tokens": steps * 256}


@pytest.fixture
def run(data: Path, preset: Preset, tmp_path: Path) -> Run:
    def make(name: str, steps: int, **lineage: Any) -> Path:
        out = tmp_path / name
        train(replace(preset, **tokens(steps)), data, out, Lineage(**lineage), checkpoint_steps=5, log_steps=1)
        return out

    return make


def test_an_interrupted_run_goes_on_bit_for_bit_also_in_mid_epoch(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # An epoch is 16 steps: the run ends in its second one, and is cut in the middle of each.
    whole = run("whole", 24)
    for stop_at in (7, 19):

        class Interrupt(TrainerCallback):
            def on_step_end(self, _args: Any, state: Any, _control: Any, *, at: int = stop_at, **_: Any) -> None:
                if state.global_step == at:
                    raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            made = module.BlockTrainer
            patch.setattr(
                module,
                "BlockTrainer",
                lambda *a, **k: (t := made(*a, **k)).add_callback(Interrupt) or t,  # noqa: B023
            )
            with pytest.raises(KeyboardInterrupt):
                run("cut", 24)
    (tmp_path / "cut" / "checkpoint-99").mkdir()  # A killed process had begun to write it.
    cut = run("cut", 24)
    ours, theirs = ([[step[name] for name in SAME] for step in steps_of(out)] for out in (cut, whole))
    assert ours == theirs
    assert [step[0] for step in ours] == list(range(1, 25))
    ours, theirs = (load_file(out / WEIGHTS) for out in (cut, whole))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_a_run_leaves_a_model_and_its_curves_and_is_not_repeated_but_may_be_longer(run: Run) -> None:
    out = run("run", 3)
    written = (out / WEIGHTS).stat().st_mtime_ns
    assert run("run", 3) == out
    assert (out / WEIGHTS).stat().st_mtime_ns == written, "nothing is left to do"
    assert [record["step"] for record in steps_of(run("run", 5))] == [1, 2, 3, 4, 5]
    names = {path.name for path in out.iterdir()}
    assert names == {".lock", "checkpoint-3", "checkpoint-5", "model", "run.json", "runs"}
    points = EventAccumulator(str(max((out / "runs").iterdir()))).Reload().Scalars("train/middle_loss")
    assert {point.step: point.value for point in points} == pytest.approx(
        {record["step"]: record["middle_loss"] for record in steps_of(out)[3:]}, rel=1e-6
    )


def test_the_folder_of_another_run_is_refused(run: Run, data: Path, preset: Preset, tmp_path: Path) -> None:
    target = run("target", 3)
    run("draft", 3, start_from=target / "model")
    with pytest.raises(PipelineError, match="other data, another shape or settings"):
        run("draft", 4)
    run("target", 6)
    with pytest.raises(PipelineError, match="other data"):  # of the same name, trained on
        run("draft", 4, start_from=target / "model")
    with locked(target / ".lock", "it"), pytest.raises(PipelineError, match="another process is writing the run in"):
        run("target", 7)
    with pytest.raises(PipelineError, match="does not divide into blocks of 64"):
        train(replace(preset, batch_tokens=100), data, tmp_path / "odd")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(run: Run) -> None:
    out = run("run", 5)
    weights = out / "checkpoint-5" / "model.safetensors"
    broken = {name: torch.full_like(value, float("nan")) for name, value in load_file(weights).items()}
    save_file(broken, weights, metadata={"format": "pt"})
    before = weights.read_bytes()
    with pytest.raises(PipelineError, match="the loss is not finite at step 6; the checkpoints are intact"):
        run("run", 9)
    assert weights.read_bytes() == before


def test_training_lowers_the_loss_and_a_teacher_brings_the_draft_nearer_to_it(run: Run) -> None:
    teacher = run("teacher", 40)
    first = steps_of(teacher)
    assert first[-1]["loss"] < first[0]["loss"] - 0.5
    assert "divergence" not in first[0]
    taught = steps_of(run("draft", 30, teacher=teacher / "model", mix=1.0))
    assert taught[-1]["divergence"] < taught[0]["divergence"] / 2
    begun = steps_of(run("begun", 2, start_from=teacher / "model"))
    assert begun[0]["loss"] < first[0]["loss"] - 0.5, "it begins with the weights of the other run"


def test_a_draft_has_as_many_embeddings_as_its_target_which_may_be_padded_but_has_the_same_vocabulary(
    run: Run, data: Path, preset: Preset, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="tokens differ"):
        run("run", 1, teacher=TARGET)
    padded = replace(preset.shape, vocab_size=preset.shape.vocab_size + 8)
    tokenizer = load_tokenizer(data / "tokenizer")
    export_model(make_model(padded, 1).state_dict(), padded, tokenizer, "", tmp_path / "target")
    for name in ("teacher", "start_from"):
        out = run(name, 1, **{name: tmp_path / "target"})
        assert json.loads((out / "model" / "config.json").read_text())["vocab_size"] == padded.vocab_size


def test_a_target_of_another_family_teaches_with_its_own_network_and_is_no_start(
    run: Run, data: Path, preset: Preset, tmp_path: Path
) -> None:
    config = Qwen2Config(
        vocab_size=preset.shape.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    qwen = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    torch.nn.init.normal_(qwen.model.layers[0].self_attn.q_proj.bias)
    qwen.save_pretrained(str(tmp_path / "qwen"))
    load_tokenizer(data / "tokenizer").save_pretrained(str(tmp_path / "qwen"))
    ids = torch.arange(16)[None]
    assert torch.equal(load_model(tmp_path / "qwen")(input_ids=ids).logits, qwen.eval()(input_ids=ids).logits)
    assert steps_of(run("run", 1, teacher=tmp_path / "qwen"))[0]["divergence"] > 0
    with pytest.raises(PipelineError, match="a Llama, not qwen2"):
        run("other", 1, start_from=tmp_path / "qwen")


def command(data: Path, out: Path, *more: str, processes: int = 1) -> list[str]:
    launch = [sys.executable, "-m"]
    if processes > 1:
        launch += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    arguments = ["train", "--preset", "tiny", "--data", str(data), "--out", str(out), "--checkpoint-steps", "10"]
    return [*launch, "tests.unit.draft_model.tiny", *arguments, *more]


@pytest.mark.full
def test_a_terminated_run_leaves_whole_checkpoints(data: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command(data, tmp_path / "run", "--tokens", "25e6"), cwd=ROOT)
    try:
        wait_until(lambda: process.poll() is not None or last_checkpoint(tmp_path / "run") is not None, WAIT_S)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait(WAIT_S)
    assert steps_of(tmp_path / "run")


@pytest.mark.full
def test_two_processes_train_the_same_as_one_and_go_on_from_its_checkpoint(data: Path, tmp_path: Path) -> None:
    def losses(name: str, steps: int, processes: int, *more: str) -> list[float]:
        arguments = command(data, tmp_path / name, "--tokens", str(steps * 256), *more, processes=processes)
        done = subprocess.run(arguments, cwd=ROOT, check=False, capture_output=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr[-3000:]
        return [record["loss"] for record in steps_of(tmp_path / name)]

    one = losses("a", 10, 1)
    assert losses("b", 10, 2) == pytest.approx(one, abs=0.005)
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    assert losses("c", 20, 2) == pytest.approx(losses("a", 20, 1), abs=0.005)
    teacher = ("--teacher", str(tmp_path / "a" / "model"))
    assert losses("d", 10, 2, *teacher) == pytest.approx(losses("e", 10, 1, *teacher), abs=0.005)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # Of torch about itself, while it compiles.
def test_compiled_code_trains_the_same(run: Run, data: Path, preset: Preset, tmp_path: Path) -> None:
    train(replace(preset, **tokens(3)), data, tmp_path / "compiled", is_compiled=True, log_steps=1)
    losses = [[step["loss"] for step in steps_of(out)] for out in (tmp_path / "compiled", run("plain", 3))]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    assert (tmp_path / "compiled" / WEIGHTS).is_file()
