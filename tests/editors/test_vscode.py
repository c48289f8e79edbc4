"""The VS Code extension in a real VS Code, against a real server: what a user types, sees, accepts and undoes."""

import asyncio
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
from tests.support.redis_servers import free_port
from tests.support.server import RunningServer, eventually, make_config, run_server
from tests.support.vocabularies import embedded
from tests.support.vscode import VSCode, vscode

SAVED_WITHIN_S = 30.0
pytestmark = pytest.mark.timeout(300)

CONTINUATIONS = {
    "def mean(values):\n    ": "total = sum(values)\n    return total / len(values)\n",
    "middle = ": "mean([1, 2, 3])\n",
    "later = ": "mean([4, 5, 6])\n",
    "never = ": "mean([7, 8, 9])\n",
}
MEAN = "import math\n\n\ndef mean(values):\n    total = sum(values)\n    return total / len(values)"


def prompt_of(request: GenerationRequest) -> str:
    return embedded().decode(list(request.prompt_token_ids), skip_special_tokens=False)


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

    async def start(self) -> None:
        config = make_config("engine.warm_up=false", f"server.listen={self.address}")
        self.server = await self._stack.enter_async_context(run_server(config, lambda: ScriptedEngine(self._answer)))

    def _answer(self, request: GenerationRequest) -> tuple[str, ...]:
        self.prompts.append(prompt_of(request))
        return continuation(self.prompts[-1])

    async def stop(self) -> None:
        await self._stack.aclose()
        self.server = None

    def count(self, metric: str, **labels: str) -> float:
        assert self.server is not None
        return self.server.count(metric, **labels)

    @property
    def num_automatic(self) -> float:
        """Requests after keys, without regard to how they ended."""
        assert self.server is not None
        samples = (each for family in self.server.registry.collect() for each in family.samples)
        return sum(
            each.value
            for each in samples
            if each.name == "completion_requests_total" and each.labels["trigger"] == "automatic"
        )


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
    (folder / ".env").write_text("PASSWORD=x\n")
    return folder


def settings_for(servers: Servers) -> dict[str, Any]:
    return {
        "completionServer.address": servers.address,
        "files.autoSave": "afterDelay",
        "files.autoSaveDelay": 100,
        "editor.wordBasedSuggestions": "off",
        "workbench.colorTheme": "Default Dark Modern",
        "workbench.startupEditor": "none",
    }


async def saved(file: Path, text: str) -> None:
    """Wait until a document, which VS Code saves by itself, has a text."""
    ends_s = time.monotonic() + SAVED_WITHIN_S
    while (found := await asyncio.to_thread(file.read_text)) != text:
        assert time.monotonic() < ends_s, f"after {SAVED_WITHIN_S} s the document was {found!r}, not {text!r}"
        await asyncio.sleep(0.05)


async def test_a_user_types_accepts_undoes_and_goes_on_after_a_restart(
    servers: Servers, workspace: Path, tmp_path: Path
) -> None:
    file = workspace / "app.py"

    async with vscode(tmp_path, workspace, settings_for(servers)) as page:
        await page.do("status", contains="Completions off")  # the workspace is not trusted yet
        await page.do("trust")
        await page.do("openFile", name="app.py")
        await page.do("status", contains="Completions", without="off")

        await page.do("type", text="def mean(values):\n")
        assert await page.do("ghost") == "total = sum(values)\n    return total / len(values)"
        await page.do("press", key="Tab")
        await saved(file, MEAN)
        await eventually(lambda: servers.count("completion_feedback_total", kind="accepted") == 1)
        assert servers.count("completion_feedback_total", kind="shown") == 1

        await type_along(page, servers, file)

        await page.do("press", key="Control+z")
        await saved(file, f"{MEAN}\n\nmiddle = mea")
        await page.do("type", text="n")
        assert await page.do("ghost") == "([1, 2, 3])"
        await page.do("press", key="Tab")
        await saved(file, f"{MEAN}\n\nmiddle = mean([1, 2, 3])")

        await servers.stop()
        await page.do("status", contains="Completions away")
        await servers.start()
        await page.do("status", contains="Completions", without="away")
        await page.do("press", key="Control+End")
        await page.do("type", text="\nlater = ")
        assert await page.do("ghost") == "mean([4, 5, 6])"
        await page.do("press", key="Control+ArrowRight")
        await saved(file, f"{MEAN}\n\nmiddle = mean([1, 2, 3])\nlater = mean")
        await page.do("press", key="Tab")
        await saved(file, f"{MEAN}\n\nmiddle = mean([1, 2, 3])\nlater = mean([4, 5, 6])")
        await eventually(lambda: servers.count("completion_feedback_total", kind="accepted_word") == 1)
        await eventually(lambda: servers.count("completion_accepted_characters_total") == len("mean([4, 5, 6])"))

        await page.do("type", text="\nnever = ")
        assert await page.do("ghost") == "mean([7, 8, 9])"
        await page.do("press", key="Escape")
        await page.do("noGhost")
        await eventually(lambda: servers.count("completion_feedback_total", kind="rejected") == 1)

        await page.do("run", title="Completions: Show the Stages of the Last Request")
        stages = await page.do("list", title="Stages of the Last Request")
        assert re.search(r"request \d+: stop\n.*on the server: queue .* prefill .* total ", stages, re.DOTALL), stages
        assert "mean" not in stages, "the stages have code"

        await page.do("openFile", name=".env")
        await page.do("status", contains="Completions off")
        await page.do("type", text="middle = ")
        await page.do("openFile", name="app.py")
        await page.do("type", text="\nlater = ")
        assert await page.do("ghost") == "mean([4, 5, 6])"
        assert not [prompt for prompt in servers.prompts if "PASSWORD" in prompt], "the server got the excluded file"


async def type_along(page: VSCode, servers: Servers, file: Path) -> None:
    """Type into the shown text: the rest stays, without a request, and is accepted."""
    await page.do("type", text="\n\n")
    await page.do("press", key="Shift+Tab")
    await page.do("type", text="middle = ")
    assert await page.do("ghost") == "mean([1, 2, 3])"
    num_automatic = servers.num_automatic
    await page.do("type", text="mea")
    assert await page.do("ghost") == "n([1, 2, 3])"
    await page.do("press", key="Tab")
    await saved(file, f"{MEAN}\n\nmiddle = mean([1, 2, 3])")
    assert servers.num_automatic == num_automatic
