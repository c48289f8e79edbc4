"""The loop, its checkpoints, its loss, and what it leaves to look at."""

import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from transformers import LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from draft_model.core.errors import PipelineError
from draft_model.core.files import locked
from draft_model.core.presets import PRESETS, Preset, find_preset
from draft_model.data.blocks import Block, BlockSource
from draft_model.data.tokenizer import load_tokenizer
from draft_model.models.export import export_model
from draft_model.models.loading import load_model
from draft_model.models.network import make_config, make_model, make_pruned, num_parameters, spread_layers
from draft_model.training.budget import Budget
from draft_model.training.loss import Teacher, cross_entropies, divergences, log_probabilities, next_token_logits
from draft_model.training.optim import is_hidden_matrix
from draft_model.training.record import BOARD, METRICS, PICTURE, read_metrics, recording
from draft_model.training.run import LOCK, Distillation, load_outcome, train
from draft_model.training.trainer import SavePoint, Trainer, TrainingProgress, Watcher, run_fingerprint
from draft_model.training.world import World
from tests.support.disk import files_up_to
from tests.support.models import TARGET

CONSOLE = Console(file=StringIO())
ROOT = Path(__file__).parents[3]


class Recorder:
    """Remembers what it is told; may interrupt the run after a number of steps, as a signal would."""

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


@pytest.fixture
def trainer(data: Path, preset: Preset) -> Callable[..., Trainer]:
    def make(path: Path, budget: Budget, step_s: float = 0.0, **more: Any) -> Trainer:
        ticks: Iterator[float] = (number * step_s for number in count())
        saved = SavePoint(path, "same")
        return Trainer(preset, BlockSource(data, 3), budget, saved, World(), clock=lambda: next(ticks), **more)

    return make


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
    before = (tmp_path / "run").read_bytes()
    broken = trainer(tmp_path / "run", Budget(steps=9))
    with torch.no_grad():
        next(broken._model.parameters()).fill_(float("nan"))
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


class FullDiskBoard:
    """In the place of TensorBoard's writer, whose own thread meets the full disk."""

    def __init__(self, folder: str, purge_step: int) -> None:
        """Start as if there were room."""

    def add_scalar(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def stop(watcher: Watcher) -> None:
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


def test_going_on_removes_what_a_killed_process_left_of_a_checkpoint(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    (tmp_path / ".run.123.tmp").write_bytes(b"half a checkpoint")
    (tmp_path / ".other.123.tmp").write_bytes(b"of another run")
    trainer(tmp_path / "run", Budget(steps=1))
    assert [path.name for path in tmp_path.iterdir()] == [".other.123.tmp"]


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


def test_muon_gets_the_matrices_of_the_layers_only(preset: Preset) -> None:
    chosen = [name for name, value in make_model(preset.shape, 1).named_parameters() if is_hidden_matrix(name, value)]
    assert len(chosen) == 14
    assert all("proj" in name for name in chosen)


@pytest.mark.parametrize(
    ("name", "expected"), [("embedded-target", 7_475_456), ("embedded-draft", 2_655_488), ("draft-1b", 1_003_046_912)]
)
def test_the_number_of_parameters(name: str, expected: int) -> None:
    shape = find_preset(name).shape
    with torch.device("meta"):
        model = make_model(shape, 1)
    assert num_parameters(model) == shape.num_parameters == expected


def test_presets_fit_each_other() -> None:
    target, draft, large = (find_preset(name).shape for name in ("embedded-target", "embedded-draft", "draft-1b"))
    assert (target.vocab_size, target.head_dim) == (draft.vocab_size, draft.head_dim)
    assert (large.num_layers, large.num_heads, large.head_dim) == (12, 16, 128)
    assert all(preset.train.batch_tokens % preset.shape.context_tokens == 0 for preset in PRESETS.values())
    with pytest.raises(PipelineError, match="embedded-draft"):
        find_preset("enormous")


def test_a_model_diverges_from_itself_by_nothing_and_the_mix_is_a_mix(
    trainer: Callable[..., Trainer], preset: Preset, data: Path, tmp_path: Path
) -> None:
    model, other = make_model(preset.shape, 1), make_model(preset.shape, 2)
    block = BlockSource(data, 3).block(0)
    with torch.no_grad():
        ours, theirs = log_probabilities(next_token_logits(model, block.ids)), next_token_logits(other, block.ids)
    assert float(divergences(ours, ours).abs().max()) < 1e-5
    assert float(divergences(ours, theirs).min()) > -1e-6
    # Cross-entropy against the teacher's distribution less its entropy.
    share = theirs.softmax(-1)
    by_hand = (share * (theirs.log_softmax(-1) - ours)).sum(-1)
    assert torch.allclose(divergences(ours, theirs), by_hand, atol=1e-5)
    wider = torch.cat([theirs, theirs[:, :3]], dim=1)
    assert torch.equal(divergences(ours, wider), divergences(ours, theirs))
    assert cross_entropies(ours, block.ids).shape == (block.ids.numel() - block.ids.shape[0],)


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


def test_layers_are_taken_evenly_over_the_depth() -> None:
    assert spread_layers(8, 2) == [0, 7]
    assert spread_layers(7, 4) == [0, 2, 4, 6]
    assert spread_layers(3, 3) == [0, 1, 2]
    assert spread_layers(5, 1) == [4]


def test_a_draft_starts_with_its_targets_embedding_and_outer_layers(preset: Preset) -> None:
    target = make_model(replace(preset.shape, num_layers=5), 1)
    torch.nn.init.normal_(target.model.layers[4].mlp.down_proj.weight)
    draft = make_pruned(preset.shape, target)
    theirs, ours = target.state_dict(), draft.state_dict()
    assert preset.shape.num_layers == len(draft.model.layers) == 2
    assert torch.equal(ours["lm_head.weight"], theirs["model.embed_tokens.weight"])
    assert torch.equal(ours["model.layers.1.mlp.down_proj.weight"], theirs["model.layers.4.mlp.down_proj.weight"])
    assert torch.equal(ours["model.layers.0.self_attn.q_proj.weight"], theirs["model.layers.0.self_attn.q_proj.weight"])
    assert num_parameters(draft) == preset.shape.num_parameters


def test_a_draft_starts_from_an_int8_target_multiplied_out() -> None:
    target = cast("LlamaForCausalLM", load_model(TARGET))
    draft = make_pruned(find_preset("embedded-draft").shape, target)
    theirs, ours = (model.model.layers[0].mlp.down_proj.weight for model in (target, draft))
    assert torch.equal(ours, theirs)
    assert len(theirs[0].unique()) <= 255, "a row of int8 times one scale"


def test_a_start_of_other_widths_or_fewer_layers_is_refused(preset: Preset) -> None:
    wider = make_model(replace(preset.shape, intermediate_size=preset.shape.intermediate_size + 8), 1)
    with pytest.raises(PipelineError, match="intermediate_size"):
        make_pruned(preset.shape, wider)
    with pytest.raises(PipelineError, match="1 layers has no 2"):
        make_pruned(preset.shape, make_model(replace(preset.shape, num_layers=1), 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}),
        ("attention_bias", True),
        ("rms_norm_eps", 1e-6),
        ("tie_word_embeddings", False),
    ],
)
def test_a_start_whose_layers_compute_something_else_is_refused(preset: Preset, name: str, value: object) -> None:
    other = make_config(preset.shape)
    setattr(other, name, value)
    with pytest.raises(PipelineError, match=name):
        make_pruned(preset.shape, LlamaForCausalLM(other))  # type: ignore[no-untyped-call]


def test_a_run_that_starts_from_a_model_is_another_run(data: Path, preset: Preset, tmp_path: Path) -> None:
    train(preset, data, tmp_path / "target", Budget(steps=2), World(), CONSOLE)
    start = tmp_path / "target" / "model"
    train(preset, data, tmp_path / "draft", Budget(steps=2), World(), CONSOLE, start_from=start)
    first, begun = (read_metrics(tmp_path / name)[0]["loss"] for name in ("target", "draft"))
    assert begun < first, "it begins with what the other has learnt"
    with pytest.raises(PipelineError, match="another"):
        train(preset, data, tmp_path / "draft", Budget(steps=3), World(), CONSOLE)
    train(preset, data, tmp_path / "target", Budget(steps=3), World(), CONSOLE)
    with pytest.raises(PipelineError, match="another"):  # of the same name, trained on
        train(preset, data, tmp_path / "draft", Budget(steps=3), World(), CONSOLE, start_from=start)


def test_a_run_leaves_a_model_its_figures_and_a_picture(data: Path, preset: Preset, tmp_path: Path) -> None:
    result = train(preset, data, tmp_path / "run", Budget(steps=6), World(), CONSOLE)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {".lock", "checkpoint.pt", "loss.png", "metrics.jsonl", "model", "run.json", "tensorboard"}
    assert (tmp_path / "run" / PICTURE).read_bytes().startswith(b"\x89PNG")
    steps = read_metrics(tmp_path / "run")
    assert [step["step"] for step in steps] == list(range(1, 7))
    assert all(step["utilisation"] > 0.0 for step in steps)
    outcome = load_outcome(tmp_path / "run")
    assert outcome is not None
    assert outcome.num_tokens == result.num_tokens == 6 * 256
    assert load_outcome(tmp_path) is None
    # A second call has nothing to train, and distils nothing from a teacher of another vocabulary.
    assert train(preset, data, tmp_path / "run", Budget(steps=6), World(), CONSOLE).num_steps == 6


def test_a_teacher_of_another_vocabulary_is_refused_before_anything_is_written(
    data: Path, preset: Preset, tmp_path: Path
) -> None:
    embedded = ROOT / "target_model" / "embedded"
    with pytest.raises(PipelineError, match="tokens differ"):
        train(
            preset, data, tmp_path / "run", Budget(steps=1), World(), CONSOLE, distillation=Distillation(embedded, 0.5)
        )
    assert not (tmp_path / "run").exists()


def test_a_draft_has_as_many_embeddings_as_its_target_which_may_be_padded(
    data: Path, preset: Preset, tmp_path: Path
) -> None:
    padded = replace(preset.shape, vocab_size=preset.shape.vocab_size + 8)
    tokenizer = load_tokenizer(data / "tokenizer")
    export_model(make_model(padded, 1).state_dict(), padded, tokenizer, "", tmp_path / "target")
    taught = {"distillation": Distillation(tmp_path / "target", 0.5)}
    for name, learnt_from in (("taught", taught), ("begun", {"start_from": tmp_path / "target"})):
        train(preset, data, tmp_path / name, Budget(steps=1), World(), CONSOLE, **learnt_from)  # type: ignore[arg-type]
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
    distillation = Distillation(tmp_path / "qwen", 0.5)
    train(preset, data, tmp_path / "run", Budget(steps=1), World(), CONSOLE, distillation=distillation)
    with pytest.raises(PipelineError, match="a Llama, not qwen2"):
        train(preset, data, tmp_path / "other", Budget(steps=1), World(), CONSOLE, start_from=tmp_path / "qwen")


def test_lines_behind_the_checkpoint_and_torn_lines_are_forgotten(data: Path, preset: Preset, tmp_path: Path) -> None:
    train(preset, data, tmp_path / "run", Budget(steps=3), World(), CONSOLE)
    with (tmp_path / "run" / METRICS).open("a") as lines:
        lines.write('{"step": 4}\n{"step": 5, "lo')
    with closing(SummaryWriter(str(tmp_path / "run" / BOARD))) as board:
        board.add_scalar("loss", 99.0, 4)
    train(preset, data, tmp_path / "run", Budget(steps=5), World(), CONSOLE)
    told = read_metrics(tmp_path / "run")
    assert [step["step"] for step in told] == [1, 2, 3, 4, 5]
    board = EventAccumulator(str(tmp_path / "run" / BOARD)).Reload()
    drawn = {point.step: point.value for point in board.Scalars("loss")}
    assert drawn == pytest.approx({step["step"]: step["loss"] for step in told}, rel=1e-6)


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


def test_a_killed_run_goes_on_as_if_it_had_not_been(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    arguments = ("--steps", "40", "--checkpoint-minutes", "0", "--compile")
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
    assert list((tmp_path / "code").rglob("*.cpp")), "it was compiled"


def test_two_processes_train_the_same_as_one_and_take_each_others_checkpoints(data: Path, tmp_path: Path) -> None:
    def run(name: str, steps: int, processes: int, *more: str) -> tuple[list[float], list[float]]:
        """The losses, and the gradients' norms: both optimisers would hide gradients that are all twice as large."""
        arguments = command(data, tmp_path / name, "--steps", str(steps), *more, processes=processes)
        done = subprocess.run(arguments, cwd=ROOT, check=False, capture_output=True, timeout=100)
        assert done.returncode == 0, done.stderr[-3000:]
        told = read_metrics(tmp_path / name)
        return [step["loss"] for step in told], [step["grad_norm"] for step in told]

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


@pytest.mark.filterwarnings("ignore")  # Of torch about itself, while it compiles.
def test_the_same_code_is_made_for_all_layers_where_that_is_asked_for(preset: Preset) -> None:
    plain, compiled = (make_model(preset.shape, 1) for _ in range(2))
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # A new model's layers change nothing, whatever is in them.
    compiled.load_state_dict(plain.state_dict())
    World().shard(plain)
    World(is_compiled=True).shard(compiled)
    ids = torch.randint(preset.shape.vocab_size, (2, 16))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    expected = next_token_logits(plain, ids)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0
    found = next_token_logits(compiled, ids)
    torch.testing.assert_close(found, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for logits in (expected, found):
        logits.square().mean().backward()
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=name)
    assert compiled.state_dict().keys() == plain.state_dict().keys()


def test_a_block_is_what_the_source_says(data: Path) -> None:
    assert isinstance(BlockSource(data, 3).block(0), Block)
    assert json.loads((data / "data.json").read_text())["vocab_size"] == 320
