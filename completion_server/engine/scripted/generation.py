"""A job in the scripted engine, how far it is and what it said that nobody took yet; and what a step came to."""

import asyncio
import random
import zlib
from collections.abc import Iterator

from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output, Step
from completion_server.engine.scripted.model import BLOCK_TOKENS, Token, blocks_of


class Generation:
    """One job in the engine: the engine moves it along, and whoever asked for it takes what it says."""

    def __init__(self, job: GenerationRequest, max_tokens: int, tokens: Iterator[str | Token], seed: int) -> None:
        self.job = job
        self.max_tokens = max_tokens
        self.num_blocks = -(-(len(job.prompt_token_ids) + max_tokens) // BLOCK_TOKENS)
        self.blocks = blocks_of(job.prompt_token_ids)
        """The prompt's whole blocks."""
        self.num_cached = 0
        self.num_prompt_left = len(job.prompt_token_ids)
        self.num_prompt_now = 0
        """Prompt tokens that the current step computes."""
        self.prompt_due_at = 0.0
        """When its prompt is computed, where that happens apart from the steps. Event loop seconds."""
        self.is_decoding = False
        self.is_running = False
        self.is_aborted = False
        self.is_over = False
        self._tokens = tokens
        self._stops = frozenset(job.stop_token_ids)
        self._rng = random.Random(zlib.crc32(job.id.encode(), seed))
        self._num_generated = 0
        self._num_drafted = 0
        self._num_accepted = 0
        self._untaken: Output | None = None
        self._error: EngineDeadError | None = None
        self._news = asyncio.Event()

    def num_accepted_of(self, num_draft_tokens: int, acceptance_rate: float) -> int:
        """Draw how many draft tokens of a step the model agrees with: all up to the first that it does not."""
        self._num_drafted += num_draft_tokens
        for num in range(num_draft_tokens):
            if self._rng.random() >= acceptance_rate:
                return num
        return num_draft_tokens

    def num_room(self, num_tokens: int) -> int:
        """Return how many of `num_tokens` more may still be generated."""
        return min(num_tokens, self.max_tokens - self._num_generated)

    def write(self, num_tokens: int) -> int:
        """Say up to `num_tokens` more and return how many it were."""
        text = ""
        finish = None
        num = 0
        while num < num_tokens and finish is None:
            token = next(self._tokens, None)
            num += 1
            if token is None:
                finish = "stop"
                continue
            text += token.text if isinstance(token, Token) else token
            if isinstance(token, Token) and token.id in self._stops:
                finish = "stop"
            elif self._num_generated + num == self.max_tokens:
                finish = "length"
        self._num_generated += num
        self._num_accepted += num - 1
        self.is_over = finish is not None
        self._put(text, num, finish)
        return num

    def fail(self, error: EngineDeadError) -> None:
        """End without an output."""
        self._error = error
        self._news.set()

    async def take(self) -> Output:
        """Wait for what was said since the last call.

        Raises:
            EngineDeadError: the engine died before the end.

        """
        while (output := self._untaken) is None:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        self._untaken = None
        return output

    def _put(self, text: str, num_tokens: int, finish: str | None) -> None:
        before = self._untaken
        if before is not None:
            text, num_tokens = before.text + text, before.num_tokens + num_tokens
        self._untaken = Output(text, num_tokens, finish, self.num_cached, self._num_drafted, self._num_accepted)
        self._news.set()


class Tally:
    """What a step came to, counted generation by generation."""

    def __init__(self, num_draft_tokens: int) -> None:
        """Begin the count of a step with this K."""
        self.num_draft_tokens = num_draft_tokens
        self.num_tokens = 0
        self.has_prompts = False
        self.has_undrafted = False
        self._num_seqs = 0
        self._num_drafts = 0
        self._accepted = [0] * num_draft_tokens

    def add_tokens(self, num_tokens: int) -> None:
        """A generation got so many tokens."""
        self.num_tokens += num_tokens
        self._num_seqs += num_tokens > 0

    def add_draft(self, num_accepted: int) -> None:
        """Of a generation's draft so many tokens were accepted."""
        self._num_drafts += 1
        for position in range(num_accepted):
            self._accepted[position] += 1

    def step(self, step_s: float) -> Step:
        """Return the whole; `step_s` is 0 where the step's time means nothing."""
        drafted = (self._num_drafts,) * self.num_draft_tokens if self._num_drafts else ()
        return Step(
            num_seqs=self._num_seqs,
            num_tokens=self.num_tokens,
            seconds=step_s or None,
            has_prompts=self.has_prompts,
            drafted=drafted,
            accepted=tuple(self._accepted[: len(drafted)]),
            has_undrafted=self.has_undrafted,
        )
