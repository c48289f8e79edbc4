"""Measures at start whether drafts pay, on real prompts, and chooses the schedule to begin with.

Callers type: each request continues a document by a few characters and asks for a short completion. Every K has its own
copies of the documents in the prefix cache, computed once before, so that it meets the texts with the same cache. In
each round every K types the same next keys; see `comparison` for the decision.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from completion_server.core.clock import Clock
from completion_server.engine.interface import (
    SEPARATED,
    Engine,
    GenerationRequest,
    SpeculationControl,
    constant_lookup,
    trial_ks,
)
from completion_server.engine.speculation.comparison import (
    FIRST_LOOK,
    LAST_SHARE,
    OFF,
    Gain,
    Schedule,
    compare,
    rows_of,
    share_after,
)
from completion_server.engine.speculation.texts import Typed, TypedRound, log_gains, text_errors
from completion_server.engine.start_times import PROGRESS_S, progress
from completion_server.engine.warmup import run_to_end

MakeRequest = Callable[[int, int, int, str], GenerationRequest]
"""Returns the request after the nth key in a document, with a largest number of tokens and a cache salt."""

BATCH_SIZES = (1, 4, 16)
LIMIT_S = 20.0
"""How long a trial may take; only the computation of the prompts and the first round may take it over that."""

NUM_DOCUMENTS = 16
NUM_TOKENS = 24

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartChoice:
    """The schedule to begin with, and the reason for it."""

    rows: Schedule
    reason: str
    log_gains: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """The logarithm of the gain by batch size and K, at most 0 where no drafts are chosen."""

    @property
    def is_off(self) -> bool:
        """Whether no batch size gets drafts."""
        return not any(k for _, _, k in self.rows)


async def run_trial(
    engine: Engine,
    control: SpeculationControl,
    make_request: MakeRequest,
    clock: Clock,
    step_timeout_s: float,
    chance: random.Random | None = None,
) -> StartChoice:
    """Measure for up to `LIMIT_S`, and return the schedule with the most tokens a second.

    The K of the engine is left at any value. `chance` decides the order of the Ks.

    Raises:
        EngineDeadError: the engine did not survive it, or gave no output for `step_timeout_s`.

    """
    info = engine.info
    typist = Typist(engine, control, make_request, clock, step_timeout_s)
    ks, chance = trial_ks(info.num_speculative_tokens), chance or random.Random()
    found = [_Measured(size, ks, chance) for size in trial_sizes(info.max_num_seqs)]
    begun_at = clock.now()
    logger.info("measuring whether drafts pay; up to %.0f s", LIMIT_S)
    with progress("computing the prompts that the drafts are measured on"):
        is_primed = await typist.prime((*ks, OFF), begun_at + LIMIT_S)
    if not is_primed:
        reason = f"off: the prompts alone would take longer than {LIMIT_S:.0f} s to compute"
        return StartChoice(rows_of({each.size: OFF for each in found}, info.max_num_seqs), reason)
    await _run_rounds(typist, found, ks, clock, begun_at)
    rows = rows_of({each.size: each.comparison.k or OFF for each in found}, info.max_num_seqs)
    return StartChoice(rows, _reason(found), {each.size: each.trusted_log_gains for each in found})


def trial_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the batch sizes that a trial measures."""
    return tuple(size for size in BATCH_SIZES if size <= max_num_seqs)


class _Measured:
    """The rounds at one batch size."""

    def __init__(self, size: int, ks: Sequence[int], chance: random.Random) -> None:
        self.size = size
        self.rounds: list[TypedRound] = []
        self.comparison = compare(dict.fromkeys(ks, ()), is_last=False)
        self.gains: dict[int, Gain] = {}
        """Those of dropped Ks are of their last look."""
        self.spent_s = 0.0
        """Time that its rounds took."""
        self._orders = _orders((*ks, OFF), chance)

    @property
    def usual_s(self) -> float:
        """The mean time of a round, 0 before the first."""
        return self.spent_s / max(1, len(self.rounds))

    @property
    def next_order(self) -> list[int]:
        """The Ks of the next round."""
        return [k for k in next(self._orders) if k not in self.comparison.dropped]

    @property
    def trusted_log_gains(self) -> dict[int, float]:
        """The gain of each K, but none above 0 where the trial has chosen no drafts."""
        gains = {k: math.log(gain.value) for k, gain in self.gains.items()}
        return gains if self.comparison.k else {k: min(0.0, gain) for k, gain in gains.items()}

    def look(self, found: "Sequence[_Measured]", ks: Sequence[int], share: float, *, is_last: bool) -> None:
        """Decide if that can be done now, or in any case at the last look. A K that was dropped stays so."""
        rounds = {each.size: each.rounds for each in found}
        self.comparison = compare(
            log_gains(rounds, ks)[self.size],
            share,
            is_last=is_last,
            dropped=self.comparison.dropped,
            shared_errors=text_errors(rounds, ks)[self.size],
        )
        self.gains.update(self.comparison.gains)

    def __str__(self) -> str:
        at_once = "1 request" if self.size == 1 else f"{self.size} requests at once"
        gain = self.comparison.gains.get(k := self.comparison.k or self.comparison.best_k)
        return f"K = {k} at {at_once}: {gain}" if gain else f"{at_once}: too few rounds ({len(self.rounds)})"


async def _run_rounds(
    typist: "Typist", found: Sequence[_Measured], ks: Sequence[int], clock: Clock, begun_at: float
) -> None:
    """Measure rounds until each batch size is decided, or no time is left. The batch sizes share the time evenly."""
    said_at = clock.now()
    while (undecided := [each for each in found if each.comparison.k is None]) and clock.now() < begun_at + LIMIT_S:
        each, round_at = min(undecided, key=lambda each: each.spent_s), clock.now()
        # A batch size that can't have its first look in time tells nothing.
        num_needed = max(1, FIRST_LOOK - len(each.rounds))
        if round_at + num_needed * each.usual_s > begun_at + LIMIT_S:
            break
        each.rounds.append(await typist.round(each.size, each.next_order))
        each.spent_s += clock.now() - round_at
        share = share_after(len(each.rounds))
        if share is not None:
            each.look(found, ks, share, is_last=False)
        if clock.now() - said_at >= PROGRESS_S:
            said_at = clock.now()
            logger.info("measuring drafts for %.0f s: %s", said_at - begun_at, _reason(found))
    for each in undecided:
        each.look(found, ks, LAST_SHARE, is_last=True)


def _orders(ks: Sequence[int], chance: random.Random) -> Iterator[list[int]]:
    """Yield random orders, each followed by its reverse, which cancels a linear drift over both."""
    while True:
        order = chance.sample(ks, len(ks))
        yield order
        yield order[::-1]


def _reason(found: Sequence[_Measured]) -> str:
    return "; ".join(map(str, found))


class Typist:
    """Types into documents, with a copy of each document for each K."""

    def __init__(
        self,
        engine: Engine,
        control: SpeculationControl,
        make_request: MakeRequest,
        clock: Clock,
        step_timeout_s: float,
    ) -> None:
        """Type on `engine`, which nobody else uses."""
        self._engine = engine
        self._control = control
        self._make_request = make_request
        self._clock = clock
        self._step_timeout_s = step_timeout_s
        self._num_typed = NUM_DOCUMENTS

    async def prime(self, ks: Sequence[int], end_at: float = math.inf) -> bool:
        """Compute all documents for each K, so that they are in the prefix cache.

        Return whether that is done; it ends at once if the first K shows that it would last beyond `end_at`.
        """
        begun_at = self._clock.now()
        for num_primed, k in enumerate(ks):
            if num_primed == 1 and begun_at + len(ks) * (self._clock.now() - begun_at) > end_at:
                return False
            self._set(k)
            requests = [self._make_request(at, 0, 1, _copy(k)) for at in range(NUM_DOCUMENTS)]
            await asyncio.gather(*map(self._ask, requests))
        return True

    async def round(self, size: int, ks: Sequence[int]) -> TypedRound:
        """Type the same next keys with each K in turn, `size` requests at once."""
        numbers = range(self._num_typed, self._num_typed + size)
        self._num_typed = numbers.stop
        found = {}
        for k in ks:
            places = (divmod(number, NUM_DOCUMENTS) for number in numbers)
            requests = [self._make_request(at, key, NUM_TOKENS, _copy(k)) for key, at in places]
            self._set(k)
            found[k] = await asyncio.gather(*map(self._ask, requests))
        return found

    def _set(self, k: int) -> None:
        if k == OFF:
            self._control.switch_off()
        else:
            self._control.set_lookup(constant_lookup(k, self._engine.info.max_num_seqs))

    async def _ask(self, request: GenerationRequest) -> Typed:
        begun_at = self._clock.now()
        done = await run_to_end(self._engine, request, self._step_timeout_s)
        return Typed(done.num_tokens, done.num_tokens - done.num_accepted, self._clock.now() - begun_at)


def _copy(k: int) -> str:
    """Return the cache salt of a K's copies of the documents."""
    return f"{SEPARATED}sample-{k}"
