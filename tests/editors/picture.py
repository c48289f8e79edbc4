"""Draw docs/images/vscode.png and vscode.gif: python -m tests.editors.picture. Only the completions are scripted."""

import asyncio
import re
import tempfile
from pathlib import Path

from PIL import Image

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.browser import Page
from tests.support.models import ROOT
from tests.support.server import make_config, run_server
from tests.support.vocabularies import embedded
from tests.support.vscode import vscode

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 640
GIF_SIZE = (800, 400)
GIF_COLOURS = 48
KEY_MS, PAUSE_MS = 90, 1400

CODE = """\
from dataclasses import dataclass


@dataclass
class Item:
    name: str
    price: float
    count: int = 1


class Cart:
    def __init__(self) -> None:
        self.items: list[Item] = []

    def total(self) -> float:
        return sum(item.price * item.count for item in self.items)

"""
DEAREST = """\
if not self.items:
            return None
        return max(self.items, key=lambda item: item.price)"""
CHEAPEST = DEAREST.replace("max", "min")
CONTINUATIONS = {
    "    def dearest(self) -> Item | None:\n        ": f"{DEAREST}\n",
    "    def cheapest(self)": " -> Item | None:\n",
    "    def cheapest(self) -> Item | None:\n        ": f"{CHEAPEST}\n",
}


def continuation(request: GenerationRequest) -> tuple[str, ...]:
    """Continue the document's last lines as CONTINUATIONS says."""
    prompt = embedded().decode(list(request.prompt_token_ids), skip_special_tokens=False) + request.begins_with
    before = re.sub(r"<\|fim_suffix\|>.*<\|fim_middle\|>", "", prompt, flags=re.DOTALL)
    text = next((text for end, text in CONTINUATIONS.items() if before.endswith(end)), "\n")
    return tuple(re.findall(r"\s*\S+|\s+", text))


class Film:
    """Frames of a page, each with the time that it is shown, in milliseconds."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._frames: list[Path] = []
        self._times_ms: list[int] = []

    async def take(self, shown_ms: int) -> None:
        path = self._folder / f"{len(self._frames)}.png"
        await self._page.do("screenshot", path=str(path))
        self._frames.append(path)
        self._times_ms.append(shown_ms)

    async def type(self, text: str) -> None:
        for character in text:
            await self._page.do("type", text=character)
            await self.take(KEY_MS)

    def save(self, path: Path) -> None:
        frames = [Image.open(each).convert("RGB").resize(GIF_SIZE, Image.Resampling.LANCZOS) for each in self._frames]
        palette = frames[-1].quantize(GIF_COLOURS)
        first, *others = (each.quantize(palette=palette, dither=Image.Dither.NONE) for each in frames)
        first.save(path, save_all=True, append_images=others, duration=self._times_ms, loop=0, optimize=True)


async def draw(folder: Path) -> None:
    """Type into a class, accept, type along; take pictures."""
    workspace = folder / "shop"
    workspace.mkdir()
    (workspace / "cart.py").write_text(CODE)
    config = make_config("engine.warm_up=false")
    async with run_server(config, lambda: ScriptedEngine(continuation)) as server:
        settings = {
            "completionServer.address": server.ready.address,
            "editor.fontSize": 16,
            "editor.minimap.enabled": False,
            "editor.wordBasedSuggestions": "off",
            "workbench.activityBar.location": "hidden",
            "workbench.colorTheme": "Default Dark Modern",
            "workbench.startupEditor": "none",
        }
        async with vscode(folder, workspace, settings) as page:
            await page.do("resize", width=WIDTH, height=HEIGHT)
            await page.do("trust")
            await page.do("openFile", name="cart.py")
            await page.do("status", contains="Completions", without="off")
            await page.do("press", keys="Control+b")
            film = Film(page, folder)
            await film.type("    def dearest(self) -> Item | None:\n")
            await page.do("ghost", text=DEAREST)
            await page.do("screenshot", path=str(IMAGES / "vscode.png"))
            await film.take(PAUSE_MS)
            await page.do("press", keys="Tab")
            await page.do("noGhost")
            await film.take(PAUSE_MS)
            await page.do("type", text="\n\n")
            await page.do("press", keys="Shift+Tab")
            await film.type("def cheapest(self)")
            await page.do("ghost", text=" -> Item | None:")
            await film.take(PAUSE_MS)
            await film.type(" -> It")
            await film.take(PAUSE_MS)
            await page.do("press", keys="Tab")
            await page.do("type", text="\n")
            await page.do("ghost", text=CHEAPEST)
            await film.take(PAUSE_MS)
            await page.do("press", keys="Tab")
            await page.do("noGhost")
            await film.take(2 * PAUSE_MS)
            await asyncio.to_thread(film.save, IMAGES / "vscode.gif")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(draw(Path(name)))
