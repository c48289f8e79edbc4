"""`vllm serve` as a target: a streaming POST for each request, given up by closing the connection at the next key."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp

from loadtest.metrics import GENERATED_TOKENS, read_counter
from loadtest.open_loop import Editor, Outcome, Record
from loadtest.trace import Trace

_DATA = b"data: "
_ERROR = b'"error"'
_COUNT = re.compile(rb'"completion_tokens":(\d+)')


class HttpTarget:
    """A server with vLLM's completions API. It gets prompts as token ids, so that only serving is compared."""

    def __init__(self, name: str, url: str, model: str, max_tokens: int, stop_token_ids: Sequence[int] = ()) -> None:
        """Ask the server at a URL; `stop_token_ids` end a completion besides the model's own end token."""
        self.name = name
        self._url = url
        self._body = {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stop_token_ids": list(stop_token_ids),
            "add_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        self._http: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        """Return an editor for each session; connections are made as they are needed, and kept alive."""
        assert self._http is not None, "the target was not entered"
        found = [_HttpEditor(self._http, f"{self._url}/v1/completions", self._body) for _ in trace.sessions]
        try:
            yield found
        finally:
            for editor in found:
                await editor.close()

    async def generated_tokens(self) -> float:
        """Return the engine's counter."""
        return await asyncio.to_thread(read_counter, f"{self._url}/metrics", GENERATED_TOKENS)

    async def __aenter__(self) -> Self:
        """Return itself, able to connect."""
        timeout = aiohttp.ClientTimeout(total=None)
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up."""
        if self._http is not None:
            await self._http.close()


class _HttpEditor:
    """One editor; its requests are tasks of their own."""

    def __init__(self, http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        self._http = http
        self._url = url
        self._body = body
        self._tasks: set[asyncio.Task[None]] = set()

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor."""
        body = self._body | {"prompt": record.request.token_ids}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        task = asyncio.create_task(self._ask(record, json.dumps(body).encode()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Hang up on what is open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, record: Record, body: bytes) -> None:
        next_key_at_s = record.request.next_key_at_s
        hang_up_at = None if next_key_at_s == float("inf") else record.clock.loop_time(next_key_at_s)
        try:
            async with asyncio.timeout_at(hang_up_at):
                await self._stream(record, body)
        except TimeoutError:
            record.end(Outcome.HUNG_UP)
        except aiohttp.ClientError as error:
            record.end(Outcome.ERROR, f"{type(error).__name__}: {error}")

    async def _stream(self, record: Record, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._http.post(self._url, data=body, headers=headers) as answer:
            if not answer.ok:
                record.end(Outcome.ERROR, await answer.text())
                return
            async for line in answer.content:
                _take(line, record)
        record.end_whole()


def _take(line: bytes, record: Record) -> None:
    """Read a line. After the first text nothing is parsed but the count: a client is to cost as little as it can."""
    counted = _COUNT.search(line)
    if counted is None:
        if _ERROR in line:
            record.end(Outcome.ERROR, line.decode(errors="replace").strip())
        return
    record.count_tokens(int(counted[1]))
    if not record.has_text:
        chunk = json.loads(line.removeprefix(_DATA))
        record.text_came("".join(choice["text"] for choice in chunk["choices"]))
