"""Shows progress: as a bar on a terminal, as occasional lines in a log file."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from draft_model.training.trainer import ProgressObserver, TrainingProgress

LINE_EVERY_S = 20.0
SMOOTHING = 0.95


def describe(progress: TrainingProgress, loss: float, middle_loss: float) -> str:
    """One line: step, losses, tokens, speed, utilisation and remaining time."""
    minutes, seconds = divmod(int(progress.left_s), 60)
    return (
        f"step {progress.step} loss {loss:.3f} middle {middle_loss:.3f} "
        f"{progress.num_tokens / 1e6:.2f}M tokens {progress.tokens_per_s:,.0f} tok/s MFU {progress.utilisation:.0%} "
        f"left {minutes}:{seconds:02d}"
    )


class _Smooth:
    """Exponential means of both losses."""

    def __init__(self) -> None:
        self._values: tuple[float, float] | None = None

    def add(self, progress: TrainingProgress) -> tuple[float, float]:
        new = (progress.loss, progress.middle_loss)
        old = self._values or new
        self._values = (
            SMOOTHING * old[0] + (1 - SMOOTHING) * new[0],
            SMOOTHING * old[1] + (1 - SMOOTHING) * new[1],
        )
        return self._values


class BarWatcher:
    """Moves a rich progress bar."""

    def __init__(self, bar: Bar, name: str) -> None:
        self._bar = bar
        self._task = bar.add_task(name, total=1.0, text="")
        self._smooth = _Smooth()

    def begin(self, step: int) -> None:
        """Show the step of a resumed run."""
        self._bar.update(self._task, text=f"from step {step}")

    def step(self, progress: TrainingProgress) -> None:
        """Show the state after a step."""
        self._bar.update(self._task, completed=progress.share, text=describe(progress, *self._smooth.add(progress)))


class LineWatcher:
    """Prints a line every `LINE_EVERY_S` seconds."""

    def __init__(self, console: Console, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._name = name
        self._clock = clock
        self._smooth = _Smooth()
        self._printed_at_s = float("-inf")

    def begin(self, step: int) -> None:
        """Print the step of a resumed run."""
        self._print(f"{self._name} from step {step}")

    def step(self, progress: TrainingProgress) -> None:
        """Print the state after a step, if the interval is over."""
        losses = self._smooth.add(progress)
        if self._clock() - self._printed_at_s >= LINE_EVERY_S or progress.share >= 1.0:
            self._printed_at_s = self._clock()
            self._print(f"{self._name} {progress.share:.1%} {describe(progress, *losses)}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


class Watchers:
    """Forwards to several watchers."""

    def __init__(self, watchers: Sequence[ProgressObserver]) -> None:
        self._watchers = tuple(watchers)

    def begin(self, step: int) -> None:
        """Forward the beginning."""
        for watcher in self._watchers:
            watcher.begin(step)

    def step(self, progress: TrainingProgress) -> None:
        """Forward a step."""
        for watcher in self._watchers:
            watcher.step(progress)


@contextmanager
def watching(console: Console, name: str) -> Iterator[ProgressObserver]:
    """A bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield LineWatcher(console, name)
        return
    with Bar(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}% {task.fields[text]}"),
             console=console) as bar:  # fmt: skip
        yield BarWatcher(bar, name)
