"""Scripted engines whose best K at each batch size is known. They run in virtual time, beside a noisy neighbour."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes, Token
from loadtest.simulation.virtual_time import LoopClock

MAX_K, SEQS = 4, 32
_STEP_S = 8e-3
_NOISE, _NOISE_S = 0.05, 0.3
_DISTURBED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """An engine whose draft tokens cost a known share of a step, and their verification another one."""

    draft: float
    verify: float
    acceptance: float

    def make(self, seed: int | None = None) -> ScriptedEngine:
        """Return the engine, disturbed if there is a seed."""
        times = ServiceTimes(
            prefill_base_s=2e-3,
            decode_base_s=_STEP_S,
            draft_s=self.draft * _STEP_S,
            verify_per_token_s=self.verify * _STEP_S,
        )
        return ScriptedEngine(
            _line,
            times,
            max_num_seqs=SEQS,
            num_speculative_tokens=MAX_K,
            acceptance_rate=self.acceptance,
            lengthen=float if seed is None else _disturbed(seed),
        )


KNOWN = {
    "loses 10%": KnownEngine(0.415, 0.0, 0.3),
    "gains 4%": KnownEngine(0.228, 0.0, 0.3),
    "gains 8%": KnownEngine(0.184, 0.0, 0.3),
    "gains 40% with K = 2, loses at 16": KnownEngine(0.20, 0.045, 0.7),
}
"""By the effect of the best K."""


def make_request(document: int, num_keys: int, num_tokens: int, cache_salt: str) -> GenerationRequest:
    """Return a request; the same place in the same document has the same text and the same accepted drafts."""
    prompt = [1 + document] * 64 + [1 + num_keys]
    return GenerationRequest(f"{document}/{num_keys}", prompt, num_tokens, cache_salt=cache_salt)


def _line(request: GenerationRequest) -> list[Token]:
    """Return a completion of one line, whose length depends on the prompt."""
    return [Token("x", 5)] * random.Random(str(request.prompt_token_ids)).randint(4, 20)


def _disturbed(seed: int) -> Callable[[float], float]:
    """Return how long a step takes beside others: lognormal noise, and sometimes half of the machine."""
    chance, until_s, factor = random.Random(seed), 0.0, 1.0

    def lengthen(step_s: float) -> float:
        nonlocal until_s, factor
        if (now := LoopClock().now()) >= until_s:
            until_s = now + _NOISE_S
            factor = math.exp(chance.gauss(0, _NOISE)) * (2 if chance.random() < _DISTURBED_SHARE else 1)
        return step_s * factor

    return lengthen
