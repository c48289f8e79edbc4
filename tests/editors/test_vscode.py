"""The VS Code extension in a real VS Code, against a real server: what a user types, sees, accepts and undoes."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.browser import Page
from tests.support.next_edits import edit_model
from tests.support.redis_servers import free_port
from tests.support.server import RunningServer, eventually, make_config, run_server
from tests.support.vocabularies import embedded
from tests.support.vscode import vscode

SAVED_WITHIN_S = 30.0
pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

CONTINUATIONS = {
    "def mean(values):\n    ": "total = sum(values)\n    return total / len(values)\n",
    "middle = ": "mean([1, 2, 3])\n",
    "later = ": "mean([4, 5, 6])\n",
    "never = ": "mean([7, 8, 9])\n",
    "\nprint": "(middle)\n",
}
MEAN = "import math\n\n\ndef mean(values):\n    total = sum(values)\n    return total / len(values)"


def prompt_of(request: GenerationRequest) -> str:
    return embedded().decode(list(request.prompt_token_ids), skip_special_tokens=False) + request.begins_with


def continuation(prompt: str) -> tuple[str, ...]:
    """Continue the document's last lines as CONTINUATIONS says; nothing else has a completion."""
    before = re.sub(r"<\|fim_suffix\|>.*<\|fim_middle\|>", "", prompt, flags=re.DOTALL)
    text = next((text for end, text in CONTINUATIONS.items() if before.endswith(end)), "\n")
    return tuple(re.findall(r"\s*\S+|\s+", text))


class Servers:
    """A server that can be restarted on the same port."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.server: RunningServer | None = None
        self.prompts: list[str] = []
        self._stack = AsyncExitStack()

    async def start(self, *overrides: str) -> None:
        config = make_config("engine.warm_up=false", f"server.listen={self.address}", *overrides)
        context = run_server(config, lambda: ScriptedEngine(edit_model(self._answer)))
        self.server = await self._stack.enter_async_context(context)

    def _answer(self, request: GenerationRequest) -> tuple[str, ...]:
        self.prompts.append(prompt_of(request))
        return continuation(self.prompts[-1])

    async def stop(self) -> None:
        await self._stack.aclose()
        self.server = None

    def count(self, metric: str, **labels: str) -> float:
        assert self.server is not None
        return self.server.count(metric, **labels)


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    servers = Servers()
    await servers.start()
    yield servers
    await servers.stop()


@pytest_asyncio.fixture
async def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "app.py").write_text("import math\n\n\n")
    (folder / "names.py").write_text("height = 1\n\nprint(height)\n")
    (folder / ".env").write_text("PASSWORD=x\n")
    (folder / "notes.md").write_text("Notes\n")
    (folder / ".vscode").mkdir()
    (folder / ".vscode" / "settings.json").write_text(json.dumps({"completionServer.languages": {"markdown": True}}))
    return folder


def settings_for(servers: Servers) -> dict[str, Any]:
    return {
        "completionServer.address": servers.address,
        "editor.wordBasedSuggestions": "off",
        "workbench.colorTheme": "Default Dark Modern",
        "workbench.startupEditor": "none",
    }


ARGUMENTS = {"type": "text", "ghost": "text", "nextEdit": "text", "press": "keys", "openFile": "name"}
STATES = {
    "off": {"contains": "Completions off"},
    "on": {"contains": "Completions", "without": "off"},
    "away": {"contains": "Completions away"},
    "back": {"contains": "Completions", "without": "away"},
}


class User:
    """A user of VS Code."""

    def __init__(self, page: Page, servers: Servers, file: Path) -> None:
        self.page = page
        self.servers = servers
        self.file = file
        self.document = MEAN

    async def does(self, *steps: tuple[str, str]) -> None:
        """Do and see things, each a command of the page and its argument."""
        for command, argument in steps:
            details = STATES[argument] if command == "status" else {ARGUMENTS[command]: argument}
            await self.page.do(command, **details)

    async def saves(self, text: str) -> None:
        """Save the document until the file has a text: VS Code undoes and accepts without waiting for it."""
        ends_s = time.monotonic() + SAVED_WITHIN_S
        while (found := await asyncio.to_thread(self.file.read_text)) != text:
            assert time.monotonic() < ends_s, f"after {SAVED_WITHIN_S} s the document was {found!r}, not {text!r}"
            await self.page.do("press", keys="Control+s")
            await asyncio.sleep(0.2)

    async def accepts(self, line: str = "") -> None:
        """Accept the rest of the shown text, and wait until the document has a further line."""
        await self.page.do("press", keys="Tab")
        self.document += f"\n{line}" if line else ""
        await self.saves(self.document)

    async def has_fed_back(self, kind: str) -> None:
        """Wait until the server has one report of a kind."""
        await eventually(lambda: self.servers.count("completion_feedback_total", kind=kind) == 1)


async def test_a_user_types_accepts_undoes_and_goes_on_after_a_restart(
    servers: Servers, workspace: Path, tmp_path: Path
) -> None:
    async with vscode(tmp_path, workspace, settings_for(servers)) as page:
        user = User(page, servers, workspace / "app.py")
        await user.does(("status", "off"))
        await page.do("trust")
        await user.does(("openFile", "app.py"), ("status", "on"))

        # Accepts many lines.
        body = "total = sum(values)\n    return total / len(values)"
        await user.does(("type", "def mean(values):\n"), ("ghost", body))
        await user.accepts()
        await user.has_fed_back("shown")
        await user.has_fed_back("accepted")

        # Types along: the rest of the shown text stays, without a request.
        await user.does(("type", "\n\n"), ("press", "Shift+Tab"), ("type", "middle = "), ("ghost", "mean([1, 2, 3])"))
        await user.does(("type", "mea"), ("ghost", "n([1, 2, 3])"))
        await user.accepts("\nmiddle = mean([1, 2, 3])")
        typed = ("middle = m", "middle = me", "middle = mea")
        assert not [prompt for prompt in servers.prompts if prompt.endswith(typed)]

        # Undoes and types on: the text is still known.
        await page.do("press", keys="Control+z")
        await user.saves(user.document.removesuffix("n([1, 2, 3])"))
        await user.does(("type", "n"), ("ghost", "([1, 2, 3])"))
        await user.accepts()

        await servers.stop()
        await user.does(("status", "away"))
        await servers.start()
        await user.does(("status", "back"))

        # Accepts a word and the rest.
        await user.does(("type", "\nlater = "), ("ghost", "mean([4, 5, 6])"), ("press", "Control+ArrowRight"))
        await user.saves(f"{user.document}\nlater = mean")
        await user.accepts("later = mean([4, 5, 6])")
        await user.has_fed_back("accepted_word")
        await eventually(lambda: servers.count("completion_accepted_characters_total") == len("mean([4, 5, 6])"))

        # Types a bracket along. The editor closes it by itself; the accepted text has it only once.
        await user.does(("type", "\nprint"), ("ghost", "(middle)"), ("type", "("), ("ghost", "middle"))
        await user.accepts("print(middle)")

        await user.does(("type", "\nnever = "), ("ghost", "mean([7, 8, 9])"), ("press", "Escape"))
        await page.do("noGhost")
        await user.has_fed_back("rejected")

        await page.do("run", title="Completions: Show the Stages of the Last Request")
        stages = await page.do("list", title="Stages of the Last Request")
        assert re.search(r"request \d+: stop\n.*on the server: queue .* prefill .* total ", stages, re.DOTALL), stages
        assert "mean" not in stages, "the stages have code"

        # The settings of a workspace, also of a trusted one, turn no language on.
        await user.does(("openFile", "notes.md"), ("status", "off"))

        # Nothing of a secret file is sent, also not as context of another file.
        await user.does(("openFile", ".env"), ("status", "off"), ("type", "middle = "), ("openFile", "app.py"))
        await user.does(("type", "\nlater = "), ("ghost", "mean([4, 5, 6])"))
        assert not [prompt for prompt in servers.prompts if "PASSWORD" in prompt]

        # A server whose model writes edits is asked, though the one before it refused.
        await servers.stop()
        await user.does(("status", "away"))
        await servers.start("prompt.next_edit_template=sweep", "engine.max_model_len=4096")
        await user.does(("openFile", "names.py"), ("status", "back"))
        await user.does(("press", "Control+Home"), ("press", "Control+Delete"), ("type", "high"))
        await user.does(("nextEdit", "print(high)"), ("press", "Tab"))
        user.file = workspace / "names.py"
        await user.saves("high = 1\n\nprint(high)\n")
        await user.has_fed_back("accepted")
