"""A run in its folder: records, locks, teachers and the model."""

import errno
import json
import signal
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from transformers import Qwen2Config, Qwen2ForCausalLM

from draft_model.core import PipelineError, Preset, locked
from draft_model.data.tokenizer import load_tokenizer
from draft_model.models import export_model, load_model, make_model
from draft_model.training.run import BOARD, LOCK, METRICS, PICTURE, read_metrics, recording, train
from draft_model.training.trainer import Budget, ProgressObserver
from draft_model.training.world import World
from tests.support.models import TARGET

CONSOLE = Console(file=StringIO())


class FullDiskBoard:
    """Replaces TensorBoard's writer: its thread finds the disk full."""

    def __init__(self, folder: str, purge_step: int) -> None:
        """Start as if there were room."""

    def add_scalar(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def stop(watcher: ProgressObserver) -> None:
    watcher.begin(0)
    raise PipelineError("the loss is nan")


def test_records_on_a_full_disk_end_the_run_with_one_line(
    data: Path, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", FullDiskBoard)
    with pytest.raises(PipelineError, match=r"cannot write to .*: No space left on device"):
        train(preset, data, tmp_path / "run", Budget(steps=2), World(), CONSOLE)
    with pytest.raises(PipelineError, match="No space left on device"), recording(tmp_path) as recorder:
        recorder.begin(0)
    with pytest.raises(PipelineError, match="the loss is nan"), recording(tmp_path) as stopped:
        stop(stopped)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_no_write_of_the_records(
    data: Path, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """An exception within TensorBoard's queue can leave it locked, and the run would never end."""
    points: list[str] = []

    class SignalledBoard(SummaryWriter):
        def add_scalar(self, tag: str, *arguments: Any, **options: Any) -> None:
            if not points:
                signal.raise_signal(number)
            points.append(tag)
            super().add_scalar(tag, *arguments, **options)

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", SignalledBoard)
    before = signal.signal(number, leave)
    try:
        with pytest.raises(SystemExit):
            train(preset, data, tmp_path / "run", Budget(steps=2), World(), CONSOLE)
        assert signal.getsignal(number) is leave
    finally:
        signal.signal(number, before)
    assert len(points) == len(set(points)) > 1
    assert len(read_metrics(tmp_path / "run")) == 1


def test_a_run_is_one_processes_at_a_time(
    data: Path, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def export_held(*arguments: Any) -> None:
        with pytest.raises(PipelineError, match="another process"), locked(out / LOCK, "it"):
            pytest.fail("until the model is written")
        export_model(*arguments)

    monkeypatch.setattr("draft_model.training.run.export_model", export_held)
    train(preset, data, out, Budget(steps=1), World(), CONSOLE)
    before = (out / "metrics.jsonl").read_bytes()
    with locked(out / LOCK, "it"), pytest.raises(PipelineError, match=f"another process is writing the run in {out}"):
        train(preset, data, out, Budget(steps=2), World(), CONSOLE)
    assert (out / "metrics.jsonl").read_bytes() == before
    assert train(preset, data, out, Budget(steps=2), World(), CONSOLE).num_steps == 2


def test_a_run_that_starts_from_a_model_is_another_run(data: Path, preset: Preset, tmp_path: Path) -> None:
    start = tmp_path / "target" / "model"
    for name, steps, start_from in (("target", 2, None), ("draft", 2, start)):
        train(preset, data, tmp_path / name, Budget(steps=steps), World(), CONSOLE, start_from=start_from)
    first, begun = (read_metrics(tmp_path / name)[0]["loss"] for name in ("target", "draft"))
    assert begun < first, "it begins with the weights of the other run"
    with pytest.raises(PipelineError, match="another"):
        train(preset, data, tmp_path / "draft", Budget(steps=3), World(), CONSOLE)
    train(preset, data, tmp_path / "target", Budget(steps=3), World(), CONSOLE)
    with pytest.raises(PipelineError, match="another"):  # of the same name, trained on
        train(preset, data, tmp_path / "draft", Budget(steps=3), World(), CONSOLE, start_from=start)


def name_in_order(board: Path, number: int) -> None:
    """Name a board's new file by a number: it reads files in the order of names, which says nothing within a second."""
    for path in board.glob("events.out.tfevents.1*"):
        path.rename(board / f"events.out.tfevents.0{number}")


def test_a_run_leaves_a_model_its_figures_and_a_picture_and_forgets_lines_behind_its_checkpoint(
    data: Path, preset: Preset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(preset, data, run, Budget(steps=3), World(), CONSOLE)
    name_in_order(run / BOARD, 1)
    with (run / METRICS).open("a") as lines:
        lines.write('{"step": 4}\n{"step": 5, "lo')
    with closing(SummaryWriter(str(run / BOARD))) as board:
        board.add_scalar("loss", 99.0, 4)
    name_in_order(run / BOARD, 2)
    result = train(preset, data, run, Budget(steps=5), World(), CONSOLE)
    names = {path.name for path in run.iterdir()}
    assert names == {".lock", "checkpoint.pt", "loss.png", "metrics.jsonl", "model", "run.json", "tensorboard"}
    assert (run / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "run.json").read_text())["num_tokens"] == result.num_tokens == 5 * 256
    metrics = read_metrics(run)
    assert [step["step"] for step in metrics] == [1, 2, 3, 4, 5]
    assert all(step["utilisation"] > 0.0 for step in metrics)
    accumulated = EventAccumulator(str(run / BOARD)).Reload()
    drawn = {point.step: point.value for point in accumulated.Scalars("loss")}
    assert drawn == pytest.approx({step["step"]: step["loss"] for step in metrics}, rel=1e-6)


def test_a_draft_has_as_many_embeddings_as_its_target_which_may_be_padded_but_has_the_same_vocabulary(
    data: Path, preset: Preset, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="tokens differ"):
        train(preset, data, tmp_path / "run", Budget(steps=1), World(), CONSOLE, teacher=TARGET)
    assert not (tmp_path / "run").exists()
    padded = replace(preset.shape, vocab_size=preset.shape.vocab_size + 8)
    tokenizer = load_tokenizer(data / "tokenizer")
    export_model(make_model(padded, 1).state_dict(), padded, tokenizer, "", tmp_path / "target")
    for name in ("teacher", "start_from"):
        learnt_from: Any = {name: tmp_path / "target"}
        train(preset, data, tmp_path / name, Budget(steps=1), World(), CONSOLE, **learnt_from)
        config = json.loads((tmp_path / name / "model" / "config.json").read_text())
        assert config["vocab_size"] == padded.vocab_size


def test_a_target_of_another_family_teaches_with_its_own_network_and_is_no_start(
    data: Path, preset: Preset, tmp_path: Path
) -> None:
    shape = preset.shape
    qwen = Qwen2ForCausalLM(  # type: ignore[no-untyped-call]
        Qwen2Config(
            vocab_size=shape.vocab_size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )
    torch.nn.init.normal_(qwen.model.layers[0].self_attn.q_proj.bias)
    qwen.save_pretrained(str(tmp_path / "qwen"))
    load_tokenizer(data / "tokenizer").save_pretrained(str(tmp_path / "qwen"))
    ids = torch.arange(16)[None]
    assert torch.equal(load_model(tmp_path / "qwen")(input_ids=ids).logits, qwen.eval()(input_ids=ids).logits)
    train(preset, data, tmp_path / "run", Budget(steps=1), World(), CONSOLE, teacher=tmp_path / "qwen")
    with pytest.raises(PipelineError, match="a Llama, not qwen2"):
        train(preset, data, tmp_path / "other", Budget(steps=1), World(), CONSOLE, start_from=tmp_path / "qwen")
