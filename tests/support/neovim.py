"""A real Neovim in a terminal, which a laptop may lack: its screen by tmux, its buffer by Neovim's own socket."""

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kustomize import report
from tests.support.models import ROOT

NEOVIM = ROOT / ".tools" / "neovim" / "nvim"
WITHIN_S = 60.0
"""For what Neovim and the server do within a second, on machines that are busy with other things."""
_COMMAND_S = 20.0


def require_neovim() -> Path:
    """Return the Neovim of `requirements/editor-tools.sh`; skip the test without it or tmux, fail it if CI is set."""
    if shutil.which("tmux") is None:
        report("tmux not found; on Debian: apt-get install tmux")
    if not NEOVIM.exists():
        report(f"{NEOVIM} not found; sh requirements/editor-tools.sh neovim installs it")
    return NEOVIM


class Neovim:
    """A running Neovim."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "nvim.sock"
        self._tmux = ("tmux", "-S", str(folder / "tmux.sock"))

    def keys(self, *keys: str) -> None:
        """Press keys at once: text, or names such as "Tab"."""
        self._run(*self._tmux, "send-keys", *keys)

    @property
    def screen(self) -> str:
        """What the terminal shows, ghost text too."""
        return self._run(*self._tmux, "capture-pane", "-p")

    @property
    def text(self) -> str:
        """The buffer's lines."""
        return self.evaluate('join(getline(1, "$"), "\\n")')

    def evaluate(self, expression: str) -> str:
        """Return an expression of Vim script."""
        return self._run(str(NEOVIM), "--server", str(self._socket), "--remote-expr", expression)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; a failure has the screen."""
        ends_s = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < ends_s, f"{what} within {WITHIN_S:g} s; the screen was:\n{self.screen}"
            await asyncio.sleep(0.05)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout


@contextmanager
def run_neovim(folder: Path, settings: str, file: Path) -> Iterator[Neovim]:
    """Run Neovim with an init.lua on a file."""
    binary, neovim = require_neovim(), Neovim(folder)
    init = folder / "init.lua"
    init.write_text(settings)
    tmux = ("tmux", "-S", str(folder / "tmux.sock"))
    state = [f"XDG_{kind}_HOME={folder}" for kind in ("STATE", "DATA", "CACHE", "CONFIG")]
    command = ["env", *state, binary, "--listen", folder / "nvim.sock", "-n", "-i", "NONE", "-u", init, file]
    size = ("-x", "100", "-y", "30")
    subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", *size, *command], check=True, timeout=_COMMAND_S)
    try:
        yield neovim
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=_COMMAND_S, capture_output=True)


def settings_of_page(page: str, command: str) -> str:
    """Return the Lua block of docs/lsp.md, as a user copies it, with another command."""
    (block,) = re.findall(r"```lua\n(.*?)```", page, re.DOTALL)
    found = "{ 'completion-lsp', '--server', '127.0.0.1:50051' }"
    assert found in block
    return block.replace(found, command)
