"""The queue and the batch of the scripted engine: continuous batching, step by step.

Pure: the caller gives the time and the acceptance rate. The KV cache of a generation is reserved as a whole when it is
admitted, so nothing is preempted; generated tokens do not enter the prefix cache; live prompts are not pinned in it.
"""

import heapq
import random
import zlib
from collections.abc import Iterator
from functools import cached_property

from completion_server.engine.interface import EngineStep, GenerationRequest, Output, Sink
from completion_server.engine.scripted.model import BLOCK_TOKENS, PrefixCache, ServiceTimes, Token, blocks_of


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


class ScriptedBatch:
    """Generations that wait and generations that run."""

    def __init__(self, times: ServiceTimes, max_num_seqs: int, max_num_batched_tokens: int, num_kv_blocks: int) -> None:
        """Begin empty. `max_num_batched_tokens` bounds the tokens of one step: longer prompts take several steps."""
        self._times = times
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_kv_blocks = num_kv_blocks
        self._cache = PrefixCache(num_kv_blocks)
        self._waiting: list[tuple[int, int, ScriptedGeneration]] = []
        self._running: list[ScriptedGeneration] = []
        self._num_arrived = 0
        self._num_used_blocks = 0
        self.written: list[ScriptedGeneration] = []
        """The batch of the last step, whose outputs are not delivered yet."""
        self.num_waiting = 0
        """Generations in the queue, without the aborted ones."""
        self.num_generated_tokens = 0
        self.num_aborted_tokens = 0
        """Tokens computed for a generation after it was aborted."""

    @property
    def num_running(self) -> int:
        """Generations in the batch."""
        return len(self._running)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that is reserved, 0 to 1."""
        return self._num_used_blocks / self._num_kv_blocks

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._running and not self.num_waiting

    def add(self, generation: ScriptedGeneration) -> None:
        """Add a generation to the queue.

        Raises:
            ValueError: it needs more memory than there is.

        """
        if generation.num_blocks > self._num_kv_blocks:
            msg = f"{generation.num_blocks} blocks do not fit into {self._num_kv_blocks}"
            raise ValueError(msg)
        self._num_arrived += 1
        self.num_waiting += 1
        heapq.heappush(self._waiting, (generation.request.priority, self._num_arrived, generation))

    def abort(self, generation: ScriptedGeneration) -> None:
        """Remove a generation: from the queue at once, from the batch at the end of the step."""
        generation.is_aborted = True
        self.num_waiting -= not generation.is_running

    def clear(self) -> None:
        """Drop everything that waits or runs."""
        self._waiting.clear()
        self._running.clear()
        self.num_waiting = self._num_used_blocks = 0

    def admit(self, now: float) -> None:
        """Move generations from the queue into the batch, while there are slots and memory."""
        while self._waiting and len(self._running) < self._max_num_seqs:
            generation = self._waiting[0][2]
            if not generation.is_aborted:
                if self._num_used_blocks + generation.num_blocks > self._num_kv_blocks:
                    return
                self._start(generation, now)
            heapq.heappop(self._waiting)

    def _start(self, generation: ScriptedGeneration, now: float) -> None:
        request = generation.request
        num_blocks = self._cache.num_cached(generation.blocks)
        # The last prompt token is always computed.
        num_blocks = min(num_blocks, (len(request.prompt_token_ids) - 1) // BLOCK_TOKENS)
        generation.num_cached = num_blocks * BLOCK_TOKENS
        generation.num_prompt_left -= generation.num_cached
        generation.is_running = True
        generation.prompt_due_at = now + self._times.prefill_apart_s
        self._running.append(generation)
        self._num_used_blocks += generation.num_blocks
        self.num_waiting -= 1

    def plan(self, num_speculative_tokens: int, now: float) -> float:
        """Plan a step, decoding first; return its duration in seconds."""
        if self._times.prefill_apart_s:
            return self._plan_apart(num_speculative_tokens, now)
        num_decoding = 0
        for generation in self._running:
            generation.is_decoding = generation.num_prompt_left == 0
            num_decoding += generation.is_decoding
        budget = self._max_num_batched_tokens - num_decoding * (1 + num_speculative_tokens)
        num_prefill_tokens = 0
        for generation in self._running:
            num = max(0, min(generation.num_prompt_left, budget - num_prefill_tokens))
            generation.num_prompt_now = num
            num_prefill_tokens += num
        return self._times.step_s(num_prefill_tokens, num_decoding, num_speculative_tokens)

    def _plan_apart(self, num_speculative_tokens: int, now: float) -> float:
        """Plan a step without prompts, which are computed elsewhere. It decodes the first token after each of them."""
        num_decoding = 0
        for generation in self._running:
            generation.is_decoding = generation.num_prompt_left == 0
            is_due = not generation.is_decoding and generation.prompt_due_at <= now
            generation.num_prompt_now = generation.num_prompt_left if is_due else 0
            num_decoding += generation.is_decoding or is_due
        return self._times.step_s(0, num_decoding, num_speculative_tokens)

    def idle_s(self, now: float) -> float:
        """Return how long to wait when there is nothing to compute.

        That is until the next prompt is ready, but at most a decode step, so that new arrivals are admitted.
        """
        if not self._times.prefill_apart_s or not self._running:
            return 0.0
        due_at = min(generation.prompt_due_at for generation in self._running)
        return min(self._times.decode_base_s, max(0.0, due_at - now))

    def finish_step(self, num_speculative_tokens: int, acceptance_rate: float, seconds: float | None) -> EngineStep:
        """Write the tokens of the step, drop generations that ended or were aborted, and return the counts."""
        num_seqs = num_tokens = 0
        has_prompts, has_undrafted = False, False
        lengths = []  # of the accepted parts of the drafts
        for generation in self._running:
            speculates = generation.request.sampling.speculate
            has_prompts |= generation.num_prompt_now > 0
            has_undrafted |= generation.is_decoding and not speculates
            if generation.is_decoding and speculates:
                lengths.append(generation.draw_num_accepted(num_speculative_tokens, acceptance_rate))
            num = self._write(generation, lengths[-1] if generation.is_decoding and speculates else 0)
            num_seqs += num > 0
            num_tokens += num
        self.written = list(self._running)
        still_running = [each for each in self._running if not (each.is_aborted or each.is_over)]
        self._num_used_blocks = sum(each.num_blocks for each in still_running)
        self._running = still_running
        self.num_generated_tokens += num_tokens
        if self.is_empty:
            self._waiting.clear()
        positions = range(num_speculative_tokens if lengths else 0)
        return EngineStep(
            num_seqs=num_seqs,
            num_tokens=num_tokens,
            seconds=seconds,
            has_prompts=has_prompts,
            drafted=tuple(len(lengths) for _ in positions),
            accepted=tuple(sum(length > position for length in lengths) for position in positions),
            has_undrafted=has_undrafted,
        )

    def _write(self, generation: ScriptedGeneration, num_accepted: int) -> int:
        """Return how many tokens the step computed for a generation, and write them unless it was aborted."""
        num_tokens = generation.num_room(1 + num_accepted)
        if not generation.is_decoding:
            generation.num_prompt_left -= generation.num_prompt_now
            if generation.num_prompt_left:
                return 0
            self._cache.insert(generation.blocks)
            num_tokens = 1
        if generation.is_aborted:
            self.num_aborted_tokens += num_tokens
            return num_tokens
        return generation.write(num_tokens)
