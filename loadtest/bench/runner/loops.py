"""Closed loop: each of `concurrency` callers sends its next prompt as soon as it has its answer, block by block.

Open loop: requests at a constant rate, whatever the answers take.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rich.table import Table

from loadtest.bench.runner.figures import Block, Sample, summary, text_table
from loadtest.processes.child import Child

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One request, in all forms that contestants need."""

    prefix: str
    suffix: str
    max_tokens: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    """The token ids as one text."""
    hang_up_after: int | None = None
    """Number of tokens after which the caller stops the generation; None runs it to `max_tokens`."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion besides the model's own end token."""
    document: str = ""
    """Name of the document. Prompts of one document come from one editor, in order; with "" each has its own."""

    def ended_like(self, sample: Sample) -> "BenchPrompt":
        """Return the prompt with the length at which the server's text rules ended its completion."""
        return replace(self, hang_up_after=sample.num_tokens if sample.num_tokens < self.max_tokens else None)

    def is_enough(self, num_tokens: int) -> bool:
        """Return whether the caller stops the generation now."""
        return self.hang_up_after is not None and num_tokens >= self.hang_up_after


@dataclass(frozen=True, slots=True)
class PromptContestant:
    """A server and how it completes prompts once each, so many at a time."""

    name: str
    process: Child
    run: Callable[[Sequence[BenchPrompt], int], Awaitable[Block]]


async def closed_loop(
    prompts: Sequence[BenchPrompt], concurrency: int, ask: Callable[[int, BenchPrompt], Awaitable[Sample]]
) -> Block:
    """Complete each prompt once. `ask` gets the caller's number and a prompt; its first failure ends the block."""
    samples: dict[int, Sample] = {}
    numbered = iter(enumerate(prompts))

    async def caller(number: int) -> None:
        for place, prompt in numbered:
            samples[place] = await ask(number, prompt)

    start = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(min(concurrency, len(prompts))):
                group.create_task(caller(number))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    wall_s = time.perf_counter() - start
    return Block(tuple(samples[place] for place in range(len(prompts))), wall_s)


async def open_loop(rate: float, seconds: float, ask: Callable[[int, float], Coroutine[Any, Any, T]]) -> list[T]:
    """Ask `rate` times a second for some time; return the answers in the order of the requests.

    `ask` gets the request's number and its intended time by `time.perf_counter`, and must raise nothing.
    """
    tasks: list[asyncio.Task[T]] = []
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(max(1, round(seconds * rate))):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(group.create_task(ask(number, due)))
    return [task.result() for task in tasks]


def summary_table(title: str, blocks: Mapping[str, Sequence[Block]], uncounted: Collection[str] = ()) -> Table:
    """Return a row of figures for the blocks of each contestant. Those `uncounted` do not count cached tokens."""
    headings = ("", "TTFT p50 ms", "p95 ms", "tokens/s each", "tokens/s together", "cached", "acceptance")
    rows = []
    for name, own in blocks.items():
        found = summary(own)
        rows.append(
            (
                name,
                f"{found['ttft_ms_p50']:.1f}",
                f"{found['ttft_ms_p95']:.1f}",
                f"{found['stream_tokens_per_s_p50']:.0f}",
                f"{found['tokens_per_s_p50']:.0f}",
                "" if name in uncounted else f"{found['cached_share']:.1%}",
                "" if math.isnan(found["acceptance"]) else f"{found['acceptance']:.1%}",
            )
        )
    return text_table(title, headings, tuple(rows))
