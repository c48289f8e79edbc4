"""Shows the progress of a run in one line of the terminal."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from loadtest.driving.run import RunProgress


class Live:
    """The progress line. Without a terminal, one line is printed for each target's turn."""

    def __init__(self, console: Console) -> None:
        """Prepare the line; nothing is shown yet."""
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[state]}"))
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=1.0, state="starting workers")
        self._said = -1

    def show(self, progress: RunProgress) -> None:
        """Show the progress."""
        turn = progress.turn
        done = progress.elapsed_s if progress.is_running else progress.num_connected
        total = turn.scenario.duration_s if progress.is_running else max(1, progress.num_sessions)
        self._bar.update(
            self._task, description=_title(progress), completed=done, total=total, state=describe(progress)
        )
        if not self._console.is_terminal and self._said != turn.number:
            self._said = turn.number
            self._console.print(_title(progress), markup=False, highlight=False)

    def __enter__(self) -> Self:
        """Show the line."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the line."""
        self._bar.stop()


def describe(progress: RunProgress) -> str:
    """Return the figures in the line."""
    if not progress.is_running:
        return f"connected {progress.num_connected:,} of {progress.num_sessions:,}"
    seconds = max(progress.elapsed_s, 1e-3)
    return (
        f"{progress.elapsed_s:.0f} of {progress.turn.scenario.duration_s:g} s  "
        f"offered {progress.num_intended / seconds:,.0f}/s  seen {progress.num_seen / seconds:,.0f}/s  "
        f"errors {progress.num_errors:,}"
    )


def _title(progress: RunProgress) -> str:
    turn = progress.turn
    place = f" ({turn.number + 1} of {turn.num_turns})" if turn.num_turns > 1 else ""
    return f"{turn.spec.name}{place}"
