"""Real editors, with the settings that docs/lsp.md has to copy, on a running server."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from completion_server.app.engine_factory import make_engine_factory
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.models import ROOT
from tests.support.server import RunningServer, eventually, make_config, run_server
from tests.support.terminal_editors import Neovim, run_helix, run_neovim

pytestmark = pytest.mark.full

PAGE = ROOT / "docs" / "lsp.md"
ANSWER = ("alpha", "(beta", ")")
GHOST = "alpha(beta)"
NEOVIM_ASKS_AFTER_S = 0.3
"""It waits for 200 ms after a key."""


class Script:
    """Answers each request alike, and counts them."""

    def __init__(self) -> None:
        self.num_requests = 0

    def __call__(self, _request: GenerationRequest) -> Sequence[str]:
        self.num_requests += 1
        return ANSWER


@asynccontextmanager
async def serving(script: Script, address: str = "127.0.0.1:0") -> AsyncIterator[RunningServer]:
    config = make_config(f"server.listen={address}", "engine.warm_up=false")
    async with run_server(config, lambda: ScriptedEngine(script)) as server:
        yield server


def settings_of_page(syntax: str, copied: str, replacement: str) -> str:
    """Return the block of docs/lsp.md in a syntax, as a user copies it, with another command."""
    (block,) = re.findall(rf"```{syntax}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert copied in block
    return str(block).replace(copied, replacement)


def arguments(address: str, log: Path) -> list[str]:
    return ["-m", "completion_lsp", "--server", address, "--log-file", str(log)]


def neovim_settings(address: str, log: Path) -> str:
    command = ", ".join(f"'{word}'" for word in (sys.executable, *arguments(address, log)))
    return settings_of_page("lua", "{ 'completion-lsp', '--server', '127.0.0.1:50051' }", f"{{ {command} }}")


def helix_settings(address: str, log: Path) -> str:
    copied = 'command = "completion-lsp"\nargs = ["--server", "127.0.0.1:50051"]'
    own = f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(arguments(address, log))}"
    return settings_of_page("toml", copied, own)


async def begun(neovim: Neovim, line: str) -> None:
    """Type a new line's beginning, and wait for its ghost text."""
    neovim.keys("Escape")
    neovim.keys("-l", f"Go{line}")
    await neovim.until(lambda: line + GHOST in neovim.screen, f"ghost text after {line!r}")
    assert neovim.text.endswith(f"\n{line}")


async def test_neovim_shows_and_accepts_and_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    script, log, file = Script(), tmp_path / "lsp.log", tmp_path / "a.py"
    file.write_text("import alpha\n")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(script))
        address = server.ready.address
        with run_neovim(tmp_path, neovim_settings(address, log), file) as neovim:
            await neovim.until(lambda: log.exists() and "connected" in log.read_text(), "connection")
            await accept(neovim)
            await eventually(lambda: server.count("completion_feedback_total", kind="accepted") == 1)
            await type_along(neovim, script)
            await accept_in_haste(neovim)
            neovim.keys("Escape", "u")
            await neovim.until(lambda: neovim.text.endswith(f"\nw = {GHOST}"), "text without the undone line")
            await stack.aclose()
            await neovim.until(lambda: "lost" in log.read_text(), "loss of the connection")
            async with serving(script, address):
                await neovim.until(lambda: "connected again" in log.read_text(), "new connection")
                await begun(neovim, "last = ")
    assert "alpha" not in log.read_text(), "the log has code"


async def accept(neovim: Neovim) -> None:
    await begun(neovim, "y = ")
    neovim.keys("Tab")
    await neovim.until(lambda: neovim.text.endswith("\ny = alpha(beta)"), "accepted text")


async def type_along(neovim: Neovim, script: Script) -> None:
    """What is typed of the ghost text is shown from memory."""
    await begun(neovim, "z = ")
    num_requests = script.num_requests
    neovim.keys("-l", "alp")
    await neovim.until(lambda: neovim.text.endswith("\nz = alp"), "typed text")
    await asyncio.sleep(2 * NEOVIM_ASKS_AFTER_S)
    assert f"z = {GHOST}" in neovim.screen
    assert script.num_requests == num_requests, "text that is known was asked for"
    neovim.keys("Tab")
    await neovim.until(lambda: neovim.text.endswith(f"\nz = {GHOST}"), "rest of the text")


async def accept_in_haste(neovim: Neovim) -> None:
    """A Tab right after a key comes before Neovim asks again: its item is for the place before the key."""
    await begun(neovim, "w = ")
    neovim.keys("alp", "Tab")
    await neovim.until(lambda: neovim.text.endswith(f"\nw = {GHOST}"), "text, not doubled")
    await begun(neovim, "v = ")
    neovim.keys("q", "Tab")
    await neovim.until(lambda: "\nv = q" in neovim.text, "key")
    await asyncio.sleep(NEOVIM_ASKS_AFTER_S)
    assert neovim.text.endswith("\nv = q"), "stale text was accepted"


ASK_FOR_EDIT = """
vim.keymap.set('n', '<F2>', function()
  local client = vim.lsp.get_clients({ name = 'completion' })[1]
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.textDocument.version = vim.lsp.util.buf_versions[vim.fn.bufnr()]
  client:request('textDocument/copilotInlineEdit', params, function(_, result, context)
    for _, edit in ipairs(result.edits) do
      local change = { range = edit.range, newText = edit.text }
      vim.lsp.util.apply_text_edits({ change }, context.bufnr, client.offset_encoding)
      client:exec_cmd(edit.command)
    end
  end)
end)
"""
"""What plugins for Copilot's next edits do, in a key."""


async def test_neovim_applies_a_next_edit(tmp_path: Path) -> None:
    log, file = tmp_path / "lsp.log", tmp_path / "a.py"
    file.write_text("def area(height):\n    return height\n")
    options = ("engine.kind=scripted", "engine.scripted_times=instant", "engine.max_model_len=4096")
    config = make_config(*options, "prompt.next_edit_template=sweep", "engine.warm_up=false")
    async with run_server(config, make_engine_factory(config)) as server:
        settings = neovim_settings(server.ready.address, log) + ASK_FOR_EDIT
        with run_neovim(tmp_path, settings, file) as neovim:
            await neovim.until(lambda: log.exists() and "connected" in log.read_text(), "connection")
            neovim.keys("-l", "fhcwhigh")
            neovim.keys("Escape")
            await neovim.until(lambda: neovim.text.startswith("def area(high)"), "changed name")
            await asyncio.sleep(NEOVIM_ASKS_AFTER_S)  # it sends changes after 150 ms
            neovim.keys("F2")
            await neovim.until(lambda: neovim.text.endswith("\n    return high"), "applied edit")
            await eventually(lambda: server.count("completion_feedback_total", kind="accepted") == 1)
    assert "high" not in log.read_text(), "the log has code"


def saved(file: Path) -> str:
    """Return the text of a file; "" while an editor replaces it, as Helix does when it saves."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


async def test_helix_has_the_completion_in_its_menu(tmp_path: Path) -> None:
    script, log, file = Script(), tmp_path / "lsp.log", tmp_path / "a.py"
    file.write_text("import alpha\n")
    async with serving(script) as server:
        with run_helix(tmp_path, helix_settings(server.ready.address, log), file) as helix:
            await helix.until(lambda: log.exists() and "connected" in log.read_text(), "connection")
            helix.keys("-l", "oy = xx")  # Helix asks after two characters of a word
            await helix.until(lambda: f"xx{GHOST}" in helix.screen, "item of the menu")
            helix.keys("Tab", "Enter", "Escape")
            await helix.until(lambda: f"y = xx{GHOST}" in helix.screen, "accepted text")
            helix.keys("-l", ":w")
            helix.keys("Enter")
            await helix.until(lambda: saved(file) == f"import alpha\ny = xx{GHOST}\n", "text in the file")
            await eventually(lambda: server.count("completion_feedback_total", kind="accepted") == 1)
