"""Single requests: their prompts, their samples, and the loops that send them.

Closed loop: each of `concurrency` callers sends its next prompt as soon as it has its answer, block by block.
Open loop: requests at a constant rate, whatever the answers take.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")

_MIN_TOKENS_FOR_RATE = 8
"""With fewer tokens the rate depends on the clock's resolution."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One request, in all forms that contestants need."""

    prefix: str
    suffix: str
    max_tokens: int
    token_ids: tuple[int, ...] = ()
    hang_up_after: int | None = None
    """Number of tokens after which the caller stops the generation; None runs it to `max_tokens`."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion besides the model's own end token."""
    document: str = ""
    """Name of the document. Prompts of one document come from one editor, in order; with "" each has its own."""

    def ended_like(self, sample: "Sample") -> "BenchPrompt":
        """Return the prompt with the length at which the server's text rules ended its completion."""
        return replace(self, hang_up_after=sample.num_tokens if sample.num_tokens < self.max_tokens else None)

    def is_enough(self, num_tokens: int) -> bool:
        """Return whether the caller stops the generation now."""
        return self.hang_up_after is not None and num_tokens >= self.hang_up_after


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its caller measured it."""

    ttft_ms: float | None
    """Time from the request to the first text; None without text."""
    total_ms: float
    num_tokens: int
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    decode_ms: float | None = None
    """Time from the first token to the last, if the server reports it; the server may hold text back."""

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of the tokens after the first; None for a short completion."""
        decode_ms = self.decode_ms
        if decode_ms is None and self.ttft_ms is not None:
            decode_ms = self.total_ms - self.ttft_ms
        if not decode_ms or self.num_tokens < _MIN_TOKENS_FOR_RATE:
            return None
        return (self.num_tokens - 1) * 1000 / decode_ms


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that ran together."""

    samples: tuple[Sample, ...]
    """Samples in the order of the prompts."""
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests per second of the block."""
        return sum(sample.num_tokens for sample in self.samples) / self.wall_s


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
    return Block(tuple(samples[place] for place in range(len(prompts))), time.perf_counter() - start)


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
