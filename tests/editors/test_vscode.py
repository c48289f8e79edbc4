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


class User:
    """What a user does in VS Code, one method for each thing, in the order in which the test calls them."""

    def __init__(self, page: Page, servers: Servers, workspace: Path) -> None:
        self.page = page
        self.servers = servers
        self.file = workspace / "app.py"
        self.document = MEAN

    async def saves(self, text: str) -> None:
        """Save the document until the file has a text: VS Code undoes and accepts without waiting for it."""
        ends_s = time.monotonic() + SAVED_WITHIN_S
        while (found := await asyncio.to_thread(self.file.read_text)) != text:
            assert time.monotonic() < ends_s, f"after {SAVED_WITHIN_S} s the document was {found!r}, not {text!r}"
            await self.page.do("press", keys="Control+s")
            await asyncio.sleep(0.2)

    async def has_fed_back(self, kind: str) -> None:
        """Wait until the server has one report of a kind."""
        await eventually(lambda: self.servers.count("completion_feedback_total", kind=kind) == 1)

    async def now_has(self, line: str) -> None:
        """Wait until the document has a further line."""
        self.document += f"\n{line}"
        await self.saves(self.document)

    async def trusts_the_workspace(self) -> None:
        await self.page.do("status", contains="Completions off")
        await self.page.do("trust")
        await self.page.do("openFile", name="app.py")
        await self.page.do("status", contains="Completions", without="off")

    async def accepts_many_lines(self) -> None:
        await self.page.do("type", text="def mean(values):\n")
        await self.page.do("ghost", text="total = sum(values)\n    return total / len(values)")
        await self.page.do("press", keys="Tab")
        await self.saves(self.document)
        await self.has_fed_back("shown")
        await self.has_fed_back("accepted")

    async def types_along(self) -> None:
        """The rest of the shown text stays, without a request."""
        await self.page.do("type", text="\n\n")
        await self.page.do("press", keys="Shift+Tab")
        await self.page.do("type", text="middle = ")
        await self.page.do("ghost", text="mean([1, 2, 3])")
        await self.page.do("type", text="mea")
        await self.page.do("ghost", text="n([1, 2, 3])")
        await self.page.do("press", keys="Tab")
        await self.now_has("\nmiddle = mean([1, 2, 3])")
        typed = ("middle = m", "middle = me", "middle = mea")
        assert not [prompt for prompt in self.servers.prompts if prompt.endswith(typed)]

    async def undoes(self) -> None:
        """And types on; the text is still known."""
        await self.page.do("press", keys="Control+z")
        await self.saves(self.document.removesuffix("n([1, 2, 3])"))
        await self.page.do("type", text="n")
        await self.page.do("ghost", text="([1, 2, 3])")
        await self.page.do("press", keys="Tab")
        await self.saves(self.document)

    async def goes_on_after_a_restart(self) -> None:
        await self.servers.stop()
        await self.page.do("status", contains="Completions away")
        await self.servers.start()
        await self.page.do("status", contains="Completions", without="away")

    async def accepts_a_word_and_the_rest(self) -> None:
        await self.page.do("type", text="\nlater = ")
        await self.page.do("ghost", text="mean([4, 5, 6])")
        await self.page.do("press", keys="Control+ArrowRight")
        await self.saves(f"{self.document}\nlater = mean")
        await self.page.do("press", keys="Tab")
        await self.now_has("later = mean([4, 5, 6])")
        await self.has_fed_back("accepted_word")
        await eventually(lambda: self.servers.count("completion_accepted_characters_total") == len("mean([4, 5, 6])"))

    async def types_a_bracket_along(self) -> None:
        """The editor closes it by itself; the accepted text has it only once."""
        await self.page.do("type", text="\nprint")
        await self.page.do("ghost", text="(middle)")
        await self.page.do("type", text="(")
        await self.page.do("ghost", text="middle")
        await self.page.do("press", keys="Tab")
        await self.now_has("print(middle)")

    async def dismisses(self) -> None:
        await self.page.do("type", text="\nnever = ")
        await self.page.do("ghost", text="mean([7, 8, 9])")
        await self.page.do("press", keys="Escape")
        await self.page.do("noGhost")
        await self.has_fed_back("rejected")

    async def reads_the_stages(self) -> None:
        await self.page.do("run", title="Completions: Show the Stages of the Last Request")
        stages = await self.page.do("list", title="Stages of the Last Request")
        assert re.search(r"request \d+: stop\n.*on the server: queue .* prefill .* total ", stages, re.DOTALL), stages
        assert "mean" not in stages, "the stages have code"

    async def opens_a_file_of_a_language_that_is_off(self) -> None:
        """The settings of a workspace, also of a trusted one, do not turn it on."""
        await self.page.do("openFile", name="notes.md")
        await self.page.do("status", contains="Completions off")

    async def edits_a_secret_file(self) -> None:
        """Nothing of it is sent, also not as context of another file."""
        await self.page.do("openFile", name=".env")
        await self.page.do("status", contains="Completions off")
        await self.page.do("type", text="middle = ")
        await self.page.do("openFile", name="app.py")
        await self.page.do("type", text="\nlater = ")
        await self.page.do("ghost", text="mean([4, 5, 6])")
        assert not [prompt for prompt in self.servers.prompts if "PASSWORD" in prompt]

    async def accepts_a_next_edit(self) -> None:
        """A server whose model writes edits is asked, though the one before it refused."""
        await self.servers.stop()
        await self.page.do("status", contains="Completions away")
        await self.servers.start("prompt.next_edit_template=sweep", "engine.max_model_len=4096")
        await self.page.do("openFile", name="names.py")
        await self.page.do("status", contains="Completions", without="away")
        await self.page.do("press", keys="Control+Home")
        await self.page.do("press", keys="Control+Delete")
        await self.page.do("type", text="high")
        await self.page.do("nextEdit", text="print(high)")
        await self.page.do("press", keys="Tab")
        self.file = self.file.with_name("names.py")
        await self.saves("high = 1\n\nprint(high)\n")
        await self.has_fed_back("accepted")


async def test_a_user_types_accepts_undoes_and_goes_on_after_a_restart(
    servers: Servers, workspace: Path, tmp_path: Path
) -> None:
    async with vscode(tmp_path, workspace, settings_for(servers)) as page:
        user = User(page, servers, workspace)
        await user.trusts_the_workspace()
        await user.accepts_many_lines()
        await user.types_along()
        await user.undoes()
        await user.goes_on_after_a_restart()
        await user.accepts_a_word_and_the_rest()
        await user.types_a_bracket_along()
        await user.dismisses()
        await user.reads_the_stages()
        await user.opens_a_file_of_a_language_that_is_off()
        await user.edits_a_secret_file()
        await user.accepts_a_next_edit()
