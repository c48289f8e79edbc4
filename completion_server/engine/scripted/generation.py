"""One generation of the scripted engine, with its progress and the output of the last step."""

import random
import zlib
from collections.abc import Iterator
from functools import cached_property

from completion_server.engine.interface import GenerationRequest, Output, Sink
from completion_server.engine.scripted.model import BLOCK_TOKENS, Token, blocks_of


class ScriptedGeneration:
    """A generation that the engine writes to and whose output goes to a sink after each step."""

    def __init__(
        self, request: GenerationRequest, sink: Sink, max_tokens: int, tokens: Iterator[str | Token], seed: int
    ) -> None:
        self.request = request
        self.sink = sink
        self.max_tokens = max_tokens
        self.num_blocks = -(-(len(request.prompt_token_ids) + max_tokens) // BLOCK_TOKENS)
        self.blocks = blocks_of(request.prompt_token_ids, request.cache_salt)
        """Hashes of the prompt's whole blocks."""
        self.num_cached = 0
        self.num_prompt_left = len(request.prompt_token_ids)
        self.num_prompt_now = 0
        """Prompt tokens that the current step computes."""
        self.prompt_due_at = 0.0
        """When its prompt will be computed, if prompts are computed apart from the steps. Event loop seconds."""
        self.is_decoding = False
        self.is_running = False
        self.is_aborted = False
        self.is_over = False
        self._tokens = tokens
        self._stops = frozenset(request.stop_token_ids)
        self._seed = seed
        self._num_generated = 0
        self._num_drafted = 0
        self._num_accepted = 0
        self._output: Output | None = None
        """Of the last step."""

    @cached_property
    def _rng(self) -> random.Random:
        """Made when there are drafts, as that takes longer than a step."""
        return random.Random(zlib.crc32(self.request.id.encode(), self._seed))

    def draw_num_accepted(self, num_speculative_tokens: int, acceptance_rate: float) -> int:
        """Draw how many draft tokens of a step the model accepts: all up to the first that it rejects."""
        self._num_drafted += num_speculative_tokens
        for num in range(num_speculative_tokens):
            if self._rng.random() >= acceptance_rate:
                return num
        return num_speculative_tokens

    def num_room(self, num_tokens: int) -> int:
        """Return how many of `num_tokens` more may still be generated."""
        return min(num_tokens, self.max_tokens - self._num_generated)

    def write(self, num_tokens: int) -> int:
        """Add up to `num_tokens` to the output and return how many were added."""
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
        self._output = Output(text, num, finish, self.num_cached, self._num_drafted, self._num_accepted)
        return num

    def deliver(self) -> None:
        """Give the output of the last step to the sink, unless the generation was aborted meanwhile."""
        output, self._output = self._output, None
        if output is not None and not self.is_aborted:
            self.sink.push(output)
