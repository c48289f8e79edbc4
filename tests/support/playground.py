"""The page at `/` of the HTTP listener in a browser."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.browser import Page, driven


class Playground(Page):
    """The page, and what a user sees of it."""

    async def open(self, address: str) -> None:
        """Open the page, and wait until it is connected."""
        await self.do("open", url=f"http://{address}/")
        await self.until("document.querySelector('#connection').dataset.state === 'connected'")
        await self.until("document.querySelector('#sessions').textContent !== '–'")

    async def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for each in keys:
            await self.do("press", keys=each)

    async def type(self, text: str) -> None:
        """Type a text as fast as a quick user does."""
        await self.do("type", text=text, delay=60)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return await self.do("evaluate", expression=expression)

    async def until(self, expression: str) -> None:
        """Wait until an expression in the page is true."""
        await self.do("until", expression=expression)

    async def ghost(self, text: str) -> None:
        """Wait until the ghost text is this one, "" for none."""
        await self.until(f"(document.querySelector('.ghost')?.textContent ?? '') === {json.dumps(text)}")

    async def line(self, text: str) -> None:
        """Wait until the cursor's line is this one, without the ghost text."""
        own = "[...document.querySelector('.cm-activeLine').childNodes].filter((each) => each.className !== 'ghost')"
        await self.until(f"{own}.map((each) => each.textContent).join('') === {json.dumps(text)}")


@asynccontextmanager
async def playground(folder: Path) -> AsyncIterator[Playground]:
    """Yield an empty tab. The browser's own files are in `folder`."""
    async with driven(folder, "playground_page.mjs") as driver:
        yield Playground(driver)
