"""The console of the commands."""

from rich.console import Console

_PIPE_WIDTH = 150
"""Width of tables without a terminal; rich's own is 80, at which they are cut."""


def wide_console() -> Console:
    """Return a console on standard output that is wide enough for the tables if it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console
