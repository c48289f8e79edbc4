"""Measures after a start what a user will feel: the time to a first word, the tokens a second, how many may type."""

import asyncio
from dataclasses import dataclass
from statistics import median

from completion_server.engine.interface import Engine
from completion_server.engine.speculation.trial import MakeRequest
from completion_server.engine.start_times import progress
from completion_server.engine.warmup import Completed, run_to_end

_NUM_TOKENS, _NUM_NEW, _NUM_KEYS, _NUM_TRIES = 12, 4, 3, 2
_SALT = "speed"


@dataclass(frozen=True, slots=True)
class Speed:
    """What an engine does for one user, and for several at once."""

    prompt_tokens_per_s: float
    """Of a prompt of which nothing is cached."""
    first_word_s: float
    """From a request to its first token, after a key in a document whose prompt was cached."""
    tokens_per_s: float
    """Of one completion at a time, with what drafts a document offers in which nothing was completed before."""
    num_in_time: int
    """Requests that began together and whose first tokens all came in time, at least 1."""

    def prompt_tokens_in(self, seconds: float) -> int:
        """Return the tokens of the longest prompt that is computed within a time."""
        return int(self.prompt_tokens_per_s * seconds)

    def __str__(self) -> str:
        """Describe it in a line."""
        editors = "1 editor" if self.num_in_time == 1 else f"{self.num_in_time} editors"
        return (
            f"first word after {self.first_word_s * 1000:.0f} ms, {self.tokens_per_s:.0f} tokens/s, good for {editors}"
        )


async def measure_speed(engine: Engine, make_request: MakeRequest, budget_s: float, step_timeout_s: float) -> Speed:
    """Measure; it takes about as long as thirty prompts. First tokens come in time within `budget_s`.

    Raises:
        EngineDeadError: the engine did not survive it, or gave no output for `step_timeout_s`.

    """

    async def ask(document: int, num_keys: int) -> Completed:
        return await run_to_end(engine, make_request(document, num_keys, _NUM_TOKENS, _SALT), step_timeout_s)

    with progress("measuring the speed"):
        lengths = [len(make_request(document, 0, 1, _SALT).prompt_token_ids) for document in range(_NUM_NEW)]
        new = [await ask(document, 0) for document in range(_NUM_NEW)]
        keys = [await ask(0, number) for number in range(1, _NUM_KEYS + 1)]
        num_in_time, size, num_keys = 1, 2, _NUM_KEYS
        while size <= engine.info.max_num_seqs:
            await asyncio.gather(*(ask(document, 0) for document in range(max(size // 2, _NUM_NEW), size)))
            for _ in range(_NUM_TRIES):  # What else the machine does may delay one.
                num_keys += 1
                together = await asyncio.gather(*(ask(document, num_keys) for document in range(size)))
                if max(each.first_s for each in together) <= budget_s:
                    break
            else:
                break
            num_in_time, size = size, size * 2
    return Speed(
        prompt_tokens_per_s=max(length / each.first_s for length, each in zip(lengths, new, strict=True)),
        first_word_s=median(each.first_s for each in keys),
        tokens_per_s=sum(each.num_tokens - 1 for each in new) / max(sum(each.rest_s for each in new), 1e-6),
        num_in_time=num_in_time,
    )
