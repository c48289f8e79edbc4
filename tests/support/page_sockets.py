"""The WebSocket of the page at `/`, as the page speaks it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.support.http_clients import ANSWERS_WITHIN_S, http_session
from tests.support.server import RunningServer

Message = dict[str, Any]


class Page:
    """An open WebSocket, as the page has one."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, type_: str, **fields: Any) -> None:
        await self.socket.send_str(json.dumps({"type": type_, **fields}))

    async def until(self, condition: Callable[[Message], bool]) -> Message:
        """Return the next message with which a condition holds."""
        seen: list[Message] = []
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                while True:
                    seen.append(json.loads(await self.socket.receive_str()))
                    if condition(seen[-1]):
                        return seen[-1]
        except TimeoutError:
            raise AssertionError(f"the message did not come; the last ones: {seen[-5:]}") from None

    async def next(self, kind: str) -> Message:
        return await self.until(lambda message: message["type"] == kind)

    async def answer(self, number: int) -> tuple[str, Message]:
        """Return the whole text of a request's answer, and its end."""
        text = ""
        while True:
            part = await self.until(lambda message: message.get("number") == number)
            text += part["text"]
            if part["type"] == "end":
                return text, part

    async def close_code(self) -> int:
        """Return the code with which the server closes."""
        return (await self.closed())[0]

    async def closed(self) -> tuple[int, str]:
        """Return the code and the reason with which the server closes."""
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            while (message := await self.socket.receive()).type is not aiohttp.WSMsgType.CLOSE:
                pass
        return message.data, message.extra or ""


@asynccontextmanager
async def opened(server: RunningServer, **headers: str) -> AsyncIterator[Page]:
    """Open a page's WebSocket. Fails with the status of a refusal."""
    address = server.ready.http_address
    sent = {"Origin": f"http://{address}", **headers}
    url = f"http://{address}/playground/socket"
    async with http_session() as session, session.ws_connect(url, headers=sent) as socket:
        yield Page(socket)
