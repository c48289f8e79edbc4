"""Real editors in a terminal, which a laptop may lack: keys and screen by tmux, Neovim's buffer by its own socket."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.kustomize import TOOLS, report

WITHIN_S = 60.0
"""For what an editor and the server do within a second, on machines that are busy with other things."""
_COMMAND_S = 20.0


def require_editor(name: str) -> Path:
    """Return an editor of `requirements/editor-tools.sh`; skip the test without it or tmux, fail it if CI is set."""
    if shutil.which("tmux") is None:
        report("tmux not found; on Debian: apt-get install tmux")
    binary = TOOLS / name / name
    if not binary.exists():
        report(f"{binary} not found; make editor-tools installs it")
    return binary


class Terminal:
    """A terminal with an editor."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ("tmux", "-S", str(folder / "tmux.sock"))

    def keys(self, *keys: str) -> None:
        """Press keys at once: text, or names such as "Tab"."""
        run(*self._tmux, "send-keys", *keys)

    @property
    def screen(self) -> str:
        """What is to be seen, ghost text too."""
        return run(*self._tmux, "capture-pane", "-p")

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; a failure has the screen.

        The look is in a thread: a look at an editor takes long on a busy machine, and the server under test has this
        event loop. Held up, it would answer after the two seconds that an automatic request has, and nothing asks again
        before the next key.
        """
        ends_s = time.monotonic() + WITHIN_S
        while not await asyncio.to_thread(holds):
            assert time.monotonic() < ends_s, f"no {what} within {WITHIN_S:g} s; the screen was:\n{self.screen}"
            await asyncio.sleep(0.05)


class Neovim(Terminal):
    """A terminal with Neovim."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = (str(require_editor("neovim")), "--server", str(folder / "nvim.sock"))

    @property
    def text(self) -> str:
        """The buffer's lines."""
        return run(*self._server, "--remote-expr", 'join(getline(1, "$"), "\\n")')


@contextmanager
def run_neovim(folder: Path, settings: str, file: Path) -> Iterator[Neovim]:
    """Run Neovim with an init.lua on a file."""
    neovim, init = Neovim(folder), folder / "init.lua"
    init.write_text(settings)
    command = (require_editor("neovim"), "--listen", folder / "nvim.sock", "-n", "-i", "NONE", "-u", init, file)
    with _in_terminal(folder, command):
        yield neovim


@contextmanager
def run_helix(folder: Path, languages: str, file: Path) -> Iterator[Terminal]:
    """Run Helix with a languages.toml on a file."""
    binary, settings = require_editor("helix"), folder / "helix"
    settings.mkdir()
    (settings / "languages.toml").write_text(languages)
    with _in_terminal(folder, (binary, file)):
        yield Terminal(folder)


@contextmanager
def _in_terminal(folder: Path, command: Sequence[str | Path]) -> Iterator[None]:
    """Run a command in a terminal of its own, with settings and state in `folder` alone."""
    homes = {f"XDG_{kind}_HOME": str(folder) for kind in ("STATE", "DATA", "CACHE", "CONFIG")}
    environment = os.environ | homes
    tmux = ("tmux", "-S", str(folder / "tmux.sock"))
    begin = [*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", *command]
    subprocess.run(begin, check=True, timeout=_COMMAND_S, env=environment)
    try:
        yield
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=_COMMAND_S, capture_output=True)


def run(*command: str) -> str:
    """Run a command and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout
