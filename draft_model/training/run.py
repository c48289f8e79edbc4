"""One training run in one folder: checkpoint, records, and at the end the model in the Hugging Face layout.

    checkpoint.pt  run.json  metrics.jsonl  tensorboard/  loss.png  model/

After an interruption the same call continues. Under torchrun every process makes the call. The records are a line of
JSON for every step, TensorBoard's files, a picture of the loss, and a progress bar or, without a terminal, occasional
lines. A resumed run removes the lines behind its checkpoint, so each step is recorded once.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO, cast

import matplotlib as mpl
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from transformers import LlamaForCausalLM, PreTrainedModel

from draft_model.core import (
    PipelineError,
    Preset,
    file_digest,
    locked,
    replacing_file,
    weights_digest,
    write_atomically,
)
from draft_model.data.shards import TOKENIZER, BlockSource
from draft_model.data.tokenizer import check_same_vocabulary, load_tokenizer
from draft_model.models import export_model, load_model, read_config
from draft_model.training.optim import Teacher
from draft_model.training.trainer import (
    CHECKPOINT_EVERY_S,
    Budget,
    ProgressObserver,
    SavePoint,
    Trainer,
    TrainingProgress,
    TrainResult,
    run_fingerprint,
)
from draft_model.training.world import World, peak_flops

CHECKPOINT = "checkpoint.pt"
LOCK = ".lock"
MODEL = "model"
RUN = "run.json"
MIX = 0.7
METRICS = "metrics.jsonl"
PICTURE = "loss.png"
BOARD = "tensorboard"
SMOOTHED_STEPS = 50
_SHOWN = ("loss", "middle_loss", "divergence", "grad_norm", "rate_scale", "tokens_per_s", "utilisation")
LINE_EVERY_S = 20.0
SMOOTHING = 0.95


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The steps of a run, in order; an unfinished last line of a killed process is ignored."""
    path = folder / METRICS
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


class TrainingRecorder:
    """Writes the progress of a run to files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._board: Any = None  # TensorBoard's writer has no types.
        self._lines: TextIO | None = None

    def begin(self, step: int) -> None:
        """Keep the lines of the finished steps and open the file to append."""
        from torch.utils.tensorboard import SummaryWriter  # takes seconds to import

        kept = (json.dumps(line) + "\n" for line in read_metrics(self._folder) if line["step"] <= step)
        write_atomically(self._folder / METRICS, "".join(kept).encode())
        with _refusals(self._folder):
            self._lines = (self._folder / METRICS).open("a", encoding="utf-8", buffering=1)
            self._board = SummaryWriter(str(self._folder / BOARD), purge_step=step + 1)

    def step(self, progress: TrainingProgress) -> None:
        """Write one line and one point of every curve; PipelineError when the disk refuses."""
        record = asdict(progress)
        assert self._lines is not None
        with _refusals(self._folder), _signals_deferred():
            self._lines.write(json.dumps(record) + "\n")
            for name in _SHOWN:
                self._board.add_scalar(name, record[name], progress.step)

    def close(self) -> None:
        """Finish the files; PipelineError when the disk refuses."""
        with _refusals(self._folder), ExitStack() as files:
            for file in (self._board, self._lines):
                if file is not None:
                    files.callback(file.close)


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PipelineError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Handle a SIGINT or SIGTERM of the block at its end.

    Their handlers raise an exception. In the middle of TensorBoard's queue it would leave a lock taken, for which
    `close` waits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    for each in handlers:
        signal.signal(each, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    if arrived:
        signal.raise_signal(arrived[0])


@contextmanager
def recording(folder: Path) -> Iterator[TrainingRecorder]:
    """A recorder for a run's folder, which draws the picture at the end."""
    recorder = TrainingRecorder(folder)
    try:
        yield recorder
    except BaseException:
        with suppress(PipelineError):  # The error that stopped the run is reported instead.
            recorder.close()
        raise
    recorder.close()
    draw_losses(folder)


def draw_losses(folder: Path) -> None:
    """Draw the smoothed loss over tokens to `loss.png`, unless there are no steps."""
    steps = read_metrics(folder)
    if not steps:
        return
    mpl.use("agg")
    from matplotlib import pyplot  # after the choice of a backend without a screen

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    tokens = np.array([step["num_tokens"] for step in steps]) / 1e6
    for name, label in (("loss", "all tokens"), ("middle_loss", "inside completions")):
        values = np.array([step[name] for step in steps])
        axes.plot(tokens, values, alpha=0.15, color="C0" if name == "loss" else "C1")
        axes.plot(tokens, smoothed(values), label=label, color="C0" if name == "loss" else "C1")
    axes.set(xlabel="training tokens, millions", ylabel="loss, nats per token", title=folder.name)
    axes.legend()
    with replacing_file(folder / PICTURE) as file:
        figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)


def smoothed(values: "np.typing.NDArray[Any]") -> "np.typing.NDArray[Any]":
    """Means over the last `SMOOTHED_STEPS` values at each place."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - SMOOTHED_STEPS)
    result: np.typing.NDArray[Any] = (sums[ends] - sums[starts]) / (ends - starts)
    return result


def describe(progress: TrainingProgress, loss: float, middle_loss: float) -> str:
    """One line: step, losses, tokens, speed, utilisation and remaining time."""
    minutes, seconds = divmod(int(progress.left_s), 60)
    return (
        f"step {progress.step} loss {loss:.3f} middle {middle_loss:.3f} "
        f"{progress.num_tokens / 1e6:.2f}M tokens {progress.tokens_per_s:,.0f} tok/s MFU {progress.utilisation:.0%} "
        f"left {minutes}:{seconds:02d}"
    )


class Watcher:
    """Shows progress: moves a bar, or prints a line every `LINE_EVERY_S` seconds without one."""

    def __init__(self, console: Console, name: str, bar: Bar | None) -> None:
        self._console = console
        self._name = name
        self._bar = None if bar is None else (bar, bar.add_task(name, total=1.0, text=""))
        self._losses: tuple[float, ...] = ()
        self._printed_at_s = float("-inf")

    def begin(self, step: int) -> None:
        """Show the step of a resumed run."""
        self._show(f"from step {step}", 0.0)

    def step(self, progress: TrainingProgress) -> None:
        """Show the state after a step, with exponential means of both losses."""
        new = (progress.loss, progress.middle_loss)
        pairs = zip(self._losses or new, new, strict=True)
        self._losses = tuple(SMOOTHING * old + (1 - SMOOTHING) * loss for old, loss in pairs)
        said = describe(progress, *self._losses)
        if self._bar is not None:
            self._show(said, progress.share)
        elif time.monotonic() - self._printed_at_s >= LINE_EVERY_S or progress.share >= 1.0:
            self._printed_at_s = time.monotonic()
            self._show(f"{progress.share:.1%} {said}", progress.share)

    def _show(self, text: str, share: float) -> None:
        if self._bar is None:
            self._console.print(f"{self._name} {text}", highlight=False, soft_wrap=True)
        else:
            bar, task = self._bar
            bar.update(task, completed=share, text=text)


@contextmanager
def watching(console: Console, name: str) -> Iterator[Watcher]:
    """A bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield Watcher(console, name, None)
        return
    with Bar(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}% {task.fields[text]}"),
             console=console) as bar:  # fmt: skip
        yield Watcher(console, name, bar)


def fit_preset(preset: Preset, data: Path, target: Path | None = None) -> Preset:
    """The preset with as many embeddings as its target, which may be padded; else as the data's vocabulary.

    vLLM serves a draft only with a target of the same `vocab_size`.
    """
    target_config = read_config(target) if target else {}
    vocab_size = int(target_config.get("vocab_size", BlockSource(data, 0).manifest.vocab_size))
    return replace(preset, shape=replace(preset.shape, vocab_size=vocab_size))


def train(
    preset: Preset,
    data: Path,
    out: Path,
    budget: Budget,
    world: World,
    console: Console,
    *,
    start_from: Path | None = None,
    teacher: Path | None = None,
    mix: float = MIX,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> TrainResult:
    """Train to the end of the budget, from the checkpoint in `out` if there is one, and write `out/model`.

    A new run starts with layers of the model `start_from`, or at random. `mix` is the share of the divergence from the
    `teacher` in the loss, 0 to 1. Raises PipelineError for a loss that is not finite, a disk that refuses, missing
    data, a teacher or start with another vocabulary, a start of other widths or of another family, a checkpoint of
    another run, or a run that another process trains.
    """
    preset = fit_preset(preset, data, teacher or start_from)
    source = BlockSource(data, preset.train.seed)
    taught_by = _load_teacher(teacher, mix, data, world) if teacher else None
    start = _load_start(start_from, data) if start_from else None
    taught = f"{weights_digest(teacher)}:{mix}" if teacher else ""
    begun = f" from {weights_digest(start_from)}" if start_from else ""
    fingerprint = run_fingerprint(preset, source.manifest.fingerprint, taught + begun)
    saved = SavePoint(out / CHECKPOINT, fingerprint, checkpoint_every_s)
    peak = peak_flops(world.device)
    with _alone(out, world):
        with ExitStack() as stack:
            watchers: list[ProgressObserver] = []
            if world.is_main:
                watchers = [stack.enter_context(recording(out)), stack.enter_context(watching(console, preset.name))]
            trainer = Trainer(preset, source, budget, saved, world, start=start, teacher=taught_by, peak_flops=peak)
            result = trainer.run(*watchers)
        if world.is_main:
            _finish(preset, data, out, result)
    world.wait()
    return result


@contextmanager
def _alone(out: Path, world: World) -> Iterator[None]:
    """Lock the folder against other runs. The main process holds the lock: the others may be on other machines."""
    with ExitStack() as held:
        refusal = None
        if world.is_main:
            try:
                held.enter_context(locked(out / LOCK, f"the run in {out}"))
            except PipelineError as error:
                refusal = error
        refusal = world.broadcast(refusal)  # All processes must know the refusal, or the others wait forever.
        if refusal:
            raise refusal
        yield


def _load_teacher(folder: Path, mix: float, data: Path, world: World) -> Teacher:
    # Bfloat16 and sharded on GPUs: a 13B teacher in float32 does not fit beside a draft.
    dtype = torch.float32 if world.device == "cpu" else torch.bfloat16
    return Teacher(world.shard(_load_same_vocabulary(folder, data, dtype)), mix)


def _load_start(folder: Path, data: Path) -> LlamaForCausalLM:
    family = read_config(folder).get("model_type")
    if family != "llama":
        raise PipelineError(f"a model to start from must be a Llama, not {family}: its layers become the draft's")
    return cast("LlamaForCausalLM", _load_same_vocabulary(folder, data))


def _load_same_vocabulary(folder: Path, data: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    check_same_vocabulary(data / TOKENIZER, folder)
    return load_model(folder, dtype)


def _finish(preset: Preset, data: Path, out: Path, result: TrainResult) -> None:
    outcome = {name: getattr(result, name) for name in ("num_steps", "num_tokens", "active_s")}
    made = f"{result.num_tokens:,} tokens in {result.num_steps:,} steps, data {file_digest(data / 'data.json')}."
    card = f"# {preset.name}\n\n{made}\n"
    export_model(result.weights, preset.shape, load_tokenizer(data / TOKENIZER), card, out / MODEL)
    write_atomically(out / RUN, (json.dumps({"preset": preset.name, **outcome}, indent=1) + "\n").encode())
