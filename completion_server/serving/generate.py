"""Generates for a request: builds its prompt, asks the engine, and charges its caller for the tokens computed."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from completion_server.admission.quotas import Reservation
from completion_server.core.clock import Clock
from completion_server.core.errors import UnavailableError
from completion_server.core.request import Request
from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output
from completion_server.prompt.builder import Prompt
from completion_server.serving.isolation import Isolation

_INLINE_CHARACTERS = 16_384
"""Up to this size the prompt is built on the event loop, because a thread switch would take longer."""


class Prompts(Protocol):
    """Turns a request into token ids; may be called from several threads at once."""

    def build(self, request: Request) -> Prompt:
        """Return the prompt. Raises InvalidRequestError if it can't fit."""
        ...

    def expected_new_tokens(self, request: Request) -> int:
        """Return a cheap estimate of the prompt tokens that the engine will have to compute."""
        ...


class Generates(Protocol):
    """The part of an engine that generates, see `engine.interface.Engine`."""

    def generate(self, request: GenerationRequest, /) -> AsyncGenerator[Output]:
        """Generate. Closing the generator aborts the work in the engine."""
        ...


class Progress(Protocol):
    """Receives what a generation has come to."""

    def prompt_ready(self, generation_id: str, num_tokens: int, num_new_tokens: int) -> None:
        """Take the number of tokens of the prompt, and an estimate of those that the prefix cache does not have."""
        ...

    def output(self, generation_id: str, output: Output) -> bool:
        """Take an output of the engine; return whether the generation goes on."""
        ...


class Generator:
    """Generates with an engine, from the prompts of a prompt builder."""

    def __init__(
        self,
        prompts: Prompts,
        engine: Generates,
        clock: Clock,
        isolation: Isolation,
        *,
        edits: Prompts | None = None,
        retry_after_ms: Callable[[], int] = lambda: 1000,
    ) -> None:
        """Generate with `engine`; if it fails, callers are asked to retry after `retry_after_ms()`.

        `edits` builds the prompts of requests for a next edit.
        """
        self._prompts = prompts
        self._edits = edits
        self._engine = engine
        self._clock = clock
        self._isolation = isolation
        self._retry_after_ms = retry_after_ms

    async def generate(self, request: Request, reservation: Reservation, progress: Progress) -> None:
        """Generate until `progress` or the engine ends it. Cancelling this aborts the work in the engine.

        The tokens computed are charged at the end.

        Raises:
            InvalidRequestError: the prompt does not fit.
            UnavailableError: the engine failed.

        """
        prompt = await self._build_prompt(request)
        num_prompt_tokens, num_new, num_generated = len(prompt.token_ids), prompt.num_new_tokens, 0
        progress.prompt_ready(request.id, num_prompt_tokens, num_new)
        generation = GenerationRequest(
            id=request.id,
            prompt_token_ids=prompt.token_ids,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stop_token_ids=prompt.stop_token_ids,
            begins_with=prompt.begins_with,
            num_beginning_tokens=prompt.num_left_out,
            priority=request.trigger,
            cache_salt=self._isolation.salt(request.caller),
            trace_headers=request.trace.headers() if request.trace is not None and request.trace.is_sampled else None,
        )
        try:
            async with aclosing(self._engine.generate(generation)) as outputs:
                async for output in outputs:
                    num_new = num_prompt_tokens - output.cached_prompt_tokens
                    num_generated += output.num_tokens
                    if not progress.output(request.id, output):
                        return
        except EngineDeadError as error:
            msg = "the engine failed and is being restarted"
            raise UnavailableError(msg, retry_after_ms=self._retry_after_ms()) from error
        finally:
            reservation.settle(num_new + num_generated, self._clock.now())

    async def _build_prompt(self, request: Request) -> Prompt:
        prompts = self._prompts if request.next_edit is None else self._edits
        assert prompts is not None
        build = prompts.build
        num_characters = len(request.prefix) + len(request.suffix) + sum(len(s.text) for s in request.snippets)
        if request.next_edit is not None:
            num_characters += sum(len(each.diff) for each in request.next_edit.recent_edits)
        if num_characters <= _INLINE_CHARACTERS:
            return build(request)
        return await asyncio.to_thread(build, request)
