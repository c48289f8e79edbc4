"""Readers whose generation and reactions a test scripts, and a runner in virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from completion_server.core.events import Emit, Marks
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.engine.interface import Output
from completion_server.scheduling.book import Book
from completion_server.scheduling.limiter import ConcurrencyLimiter
from completion_server.scheduling.requests import LiveRequest
from completion_server.serving.generate import Progress
from completion_server.serving.runner import Runner
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from tests.support.cancels import cancel_and_wait
from tests.unit.scheduling.live_requests import live

Script = Callable[[], AsyncGenerator[Output | None]]
"""Yields None when the prompt is built, then outputs."""


@dataclass
class ScriptedReader:
    """A reader that a test scripts."""

    live: LiveRequest
    script: Script
    text: str = ""
    ends: list[Outcome] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    num_generations: int = 0
    was_aborted: bool = False
    fault: str = ""
    """The method that raises."""

    def generate(self, progress: Progress) -> Coroutine[Any, Any, None]:
        self.num_generations += 1
        return self._generate(progress)

    def receive(self, text: str) -> None:
        self.text += text
        self._fail("receive")

    def finish(self, reason: FinishReason | None) -> Outcome | None:
        self._fail("finish")
        return None if reason is None else Outcome(reason)

    def end(self, outcome: Outcome, usage: Usage) -> None:
        self.ends.append(outcome)
        self.usages.append(usage)
        self._fail("end")

    @property
    def reasons(self) -> list[str]:
        return [end.reason.value for end in self.ends]

    @property
    def marks(self) -> Marks:
        return self.live.marks

    async def _generate(self, progress: Progress) -> None:
        try:
            async with aclosing(self.script()) as steps:
                async for output in steps:
                    if output is None:
                        progress.prompt_ready(self.live.id, 3, 3)
                    elif not progress.output(self.live.id, output):
                        return
                    self._fail("generate")
        except asyncio.CancelledError:
            self.was_aborted = True
            raise

    def _fail(self, where: str) -> None:
        if self.fault == where:
            raise ZeroDivisionError


def saying(*words: str, seconds: float = 1.0, finish: str = "stop") -> Script:
    """Return a script that generates its words, one token each, and ends after `seconds` in total."""

    async def script() -> AsyncGenerator[Output | None]:
        yield None
        for number, word in enumerate(words, 1):
            await asyncio.sleep(seconds / len(words))
            yield Output(word, 1, finish if number == len(words) else None)

    return script


def slow_to_abort(seconds: float) -> Script:
    """Return a script that generates no text for long, and takes `seconds` to stop after an abort."""

    async def script() -> AsyncGenerator[Output | None]:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(seconds)
        yield Output("late", 1, "stop")

    return script


def ask(request_id: str, *, seconds: float = 1.0, script: Script | None = None, **fields: Any) -> ScriptedReader:
    """Return a request whose generation takes so long."""
    return ScriptedReader(live(request_id, **fields), script or saying("a", "b", "c", "d", seconds=seconds))


def key(sequence: int, **fields: Any) -> ScriptedReader:
    """Return one of a user's requests."""
    return ask(f"r{sequence}", lane="user", sequence=sequence, **fields)


def typed(sequence: int, prefix: str, **fields: Any) -> ScriptedReader:
    """Return one of a user's requests, which may reattach."""
    return key(sequence, prefix=prefix, **fields)


def run(
    scenario: Callable[[Runner], Coroutine[Any, Any, None]],
    *,
    num_slots: int = 2,
    limiter: ConcurrencyLimiter | None = None,
    emit: Emit = lambda _event: None,
) -> None:
    """Run a scenario in virtual time, and check that it leaves nothing behind."""

    async def main() -> None:
        runner = Runner(Book(num_slots, max_queued=10, limiter=limiter), LoopClock(), emit)
        task = asyncio.create_task(runner.run())
        await asyncio.sleep(0)
        await scenario(runner)
        await runner.wait_idle()
        assert (runner.book.num_live, runner.book.num_occupied, runner.book.num_queued) == (0, 0, 0)
        await cancel_and_wait(task)

    virtual_time.run(main())
