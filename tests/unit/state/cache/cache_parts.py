"""Parts of the completion cache for tests: names, entries, and a store without Redis."""

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from completion_server.core.outcome import CachedAnswer, FinishedAnswer, FinishReason
from completion_server.core.request import Caller, Mode, Request
from completion_server.state.cache.keys import CompletionKeys
from completion_server.state.cache.local import Entry
from completion_server.state.store import Arg, StoreUnavailableError

SECRET = bytes(range(32))
ALICE = Caller("alice", "editor", "acme", is_verified=True)
REQUEST = Request("r", ALICE, 0, "file:///a.py", "python", "x = ", "", 64, 0.0, mode=Mode.MULTI_LINE)


def request_of(prefix: str, **fields: Any) -> Request:
    return dataclasses.replace(REQUEST, prefix=prefix, **fields)


def make_keys(*identity: str, secret: bytes = SECRET, is_tenant_wide: bool = False) -> CompletionKeys:
    salt_of: Callable[[Caller], str] = lambda caller: caller.tenant if is_tenant_wide else caller.owner  # noqa: E731
    return CompletionKeys(secret, identity or ("model",), salt_of, is_tenant_wide=is_tenant_wide)


def entry_of(tail: str, text: str, reason: FinishReason = FinishReason.STOP, made_at: float = 0.0) -> Entry:
    return Entry(tail, text, reason, made_at, num_prompt_tokens=100, num_completion_tokens=20, engine_s=0.5)


def answer_of(text: str, reason: FinishReason = FinishReason.STOP, num_typed: int = 0) -> FinishedAnswer:
    return FinishedAnswer(text, reason, num_typed, num_prompt_tokens=100, num_completion_tokens=20, engine_s=0.5)


@dataclass
class FakeStore:
    """A store that replies when it is told to."""

    values: dict[str, bytes] = field(default_factory=dict)
    is_available: bool = True
    fails: bool = False
    commands: list[tuple[Arg, ...]] = field(default_factory=list)
    _waiting: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = field(default_factory=list)

    def call_nowait(self, *command: Arg, patience_s: float = 0.0) -> "asyncio.Future[Any]":
        self.commands.append(command)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, future))
        return future

    async def reply(self) -> None:
        """Reply to all commands, and let the callbacks run."""
        await asyncio.sleep(0)
        for command, future in self._waiting:
            match command:
                case _ if self.fails:
                    future.set_exception(StoreUnavailableError("it fails"))
                case ("GET", key):
                    future.set_result(self.values.get(key))
                case ("SET", key, value, "PX", _ttl_ms):
                    self.values[key] = value
                    future.set_result(b"OK")
        self._waiting.clear()
        await asyncio.sleep(0)


@dataclass
class Received:
    """Takes answers of level 2."""

    is_used: bool = True
    answers: list[CachedAnswer] = field(default_factory=list)

    def __call__(self, answer: CachedAnswer) -> bool:
        self.answers.append(answer)
        return self.is_used
