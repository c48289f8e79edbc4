"""Records and shows a run: a line of JSON for every step, TensorBoard's files, a picture of the loss, a progress bar.

A resumed run removes the lines behind its checkpoint, so each step is recorded once. Without a terminal the bar is an
occasional line.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from draft_model.core import PipelineError, replacing_file, write_atomically
from draft_model.training.trainer import TrainingProgress

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

    def __init__(self, folder: Path, open_board: Callable[..., Any]) -> None:
        self._folder = folder
        self._open_board = open_board
        self._board: Any = None  # TensorBoard's writer has no types.
        self._lines: TextIO | None = None

    def begin(self, step: int) -> None:
        """Keep the lines of the finished steps and open the file to append."""
        kept = (json.dumps(line) + "\n" for line in read_metrics(self._folder) if line["step"] <= step)
        write_atomically(self._folder / METRICS, "".join(kept).encode())
        with _refusals(self._folder):
            self._lines = (self._folder / METRICS).open("a", encoding="utf-8", buffering=1)
            self._board = self._open_board(purge_step=step + 1)

    def step(self, progress: TrainingProgress) -> None:
        """Write one line and one point of every curve; PipelineError when the disk refuses."""
        record = asdict(progress)
        assert self._lines is not None
        with _refusals(self._folder):
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
def recording(folder: Path) -> Iterator[TrainingRecorder]:
    """A recorder for a run's folder, which draws the picture at the end."""
    from torch.utils.tensorboard import SummaryWriter  # takes seconds to import

    recorder = TrainingRecorder(folder, partial(SummaryWriter, str(folder / BOARD)))
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
