"""Measures at start whether drafts pay, on real prompts, and chooses the schedule to begin with.

Callers type: each request continues its document by a few characters and asks for a short completion, so that the draft
model's share of the prompts counts too. Every K is measured in each round, and the best round counts: a disturbance of
the machine makes a round slower, never faster.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt

from completion_server.core.clock import Clock
from completion_server.engine.interface import Engine, GenerationRequest, SpeculationControl, constant_lookup
from completion_server.engine.warmup import run_to_end

MakeRequest = Callable[[int, int, int], GenerationRequest]
"""Returns the request after the nth key in a document, with a largest number of tokens."""

OFF = 0

_BATCH_SIZES = (1, 4, 16)
_ROUNDS = 2
_KEYS = 4
"""Requests of each caller in a measurement."""
_NUM_TOKENS = 24
_TIME_LIMIT_S = 10.0
"""After this no further round begins."""
_MIN_GAIN = 0.05
"""How much more than without drafts a K must give: what can be measured in so short a time."""


@dataclass(frozen=True, slots=True)
class StartChoice:
    """The schedule to begin with, and the reason for it."""

    rows: tuple[tuple[int, int, int], ...]
    """Rows of [first, last, K]."""
    reason: str

    @property
    def is_off(self) -> bool:
        """Whether no batch size gets drafts."""
        return not any(k for _, _, k in self.rows)


async def run_trial(
    engine: Engine, control: SpeculationControl, make_request: MakeRequest, clock: Clock, step_timeout_s: float
) -> StartChoice:
    """Measure for a few seconds, and return the schedule with the most tokens a second.

    The K of the engine is left at any value.

    Raises:
        EngineDeadError: the engine did not survive it, or gave no output for `step_timeout_s`.

    """
    trial = _Trial(engine, make_request, clock, step_timeout_s)
    max_k, max_size = engine.info.num_speculative_tokens, engine.info.max_num_seqs
    sizes = [size for size in _BATCH_SIZES if size <= max_size] or [max_size]
    best: dict[tuple[int, int], float] = {}
    begun = clock.now()
    for _ in range(_ROUNDS):
        for k in (max_k, *({max_k // 2} - {0, max_k}), OFF):
            if k == OFF:
                control.switch_off()
            else:
                control.set_lookup(constant_lookup(k, max_size))
            await trial.fill_caches(sizes[-1])
            for size in sizes:
                best[size, k] = max(best.get((size, k), 0.0), await trial.tokens_per_s(size))
        if clock.now() - begun > _TIME_LIMIT_S:
            break
    return choose(best, max_size)


def choose(tokens_per_s: dict[tuple[int, int], float], max_batch_size: int) -> StartChoice:
    """Return the best schedule from the tokens a second by batch size and K, with K = 0 for drafts switched off."""
    sizes = sorted({size for size, _ in tokens_per_s})
    gains = {size: _best_gain(size, tokens_per_s) for size in sizes}
    chosen = {size: k if gain >= 1 + _MIN_GAIN else OFF for size, (gain, k) in gains.items()}
    rows: list[tuple[int, int, int]] = []
    for at, size in enumerate(sizes):
        is_last = at + 1 == len(sizes)
        last = max_batch_size if is_last else isqrt(size * sizes[at + 1])
        if rows and rows[-1][2] == chosen[size]:
            rows[-1] = (rows[-1][0], last, chosen[size])
        else:
            rows.append((rows[-1][1] + 1 if rows else 1, last, chosen[size]))
    size = max(sizes, key=lambda size: gains[size][0])
    gain, k = gains[size]
    at_once = "1 request" if size == 1 else f"{size} requests at once"
    return StartChoice(tuple(rows), f"at best {gain:.2f} times the tokens/s without drafts (K = {k}, {at_once})")


def _best_gain(size: int, tokens_per_s: dict[tuple[int, int], float]) -> tuple[float, int]:
    """Return the largest gain over no drafts at a batch size, and its K."""
    without = tokens_per_s[size, OFF]
    return max((rate / without, k) for (at, k), rate in tokens_per_s.items() if at == size and k != OFF)


class _Trial:
    """The callers."""

    def __init__(self, engine: Engine, make_request: MakeRequest, clock: Clock, step_timeout_s: float) -> None:
        self._engine = engine
        self._make_request = make_request
        self._clock = clock
        self._step_timeout_s = step_timeout_s
        self._num_keys = 0

    async def fill_caches(self, size: int) -> None:
        """Compute the prompts of all documents."""
        self._num_keys += 1
        await asyncio.gather(*(self._ask(self._make_request(at, self._num_keys, 1)) for at in range(size)))

    async def tokens_per_s(self, size: int) -> float:
        """Measure `size` callers."""
        requests: list[Sequence[GenerationRequest]] = [[] for _ in range(size)]
        for _ in range(_KEYS):  # the prompts are built before, and not timed
            self._num_keys += 1
            requests = [
                [*made, self._make_request(at, self._num_keys, _NUM_TOKENS)] for at, made in enumerate(requests)
            ]
        begun = self._clock.now()
        num_tokens = await asyncio.gather(*(self._type(each) for each in requests))
        return sum(num_tokens) / max(self._clock.now() - begun, 1e-9)

    async def _type(self, requests: Sequence[GenerationRequest]) -> int:
        return sum([await self._ask(request) for request in requests])

    async def _ask(self, request: GenerationRequest) -> int:
        return await run_to_end(self._engine, request, self._step_timeout_s)
