"""Sweeps computed from known models: tokens a second by concurrency and K, with noise, and a machine that drifts."""

from collections.abc import Callable, Sequence

import numpy as np

from completion.v1 import completion_pb2 as pb
from loadtest.targets.record import Outcome, Result
from loadtest.tuning.blocks import Block, Blocks, Variant
from loadtest.tuning.tuner import turns
from tests.unit.loadtest.typed import request

CONCURRENCIES = (1, 4, 16, 64)
KS = tuple(range(5))
ROUNDS = 6

SURVIVAL = (0.8, 0.6, 0.42, 0.3)
"""For each position of a draft, the share of drafts that are accepted up to and including it."""
PAYS_AT_SMALL_BATCHES = (10e-3, 0.1e-3, 1e-3, 0.5e-3, 0.3e-3)
"""Seconds of a step: the step, each generation, a draft at all, each draft token, and each one to verify.

Verifying costs as much as it brings at some forty generations.
"""
NEVER_PAYS = (4e-3, 0.2e-3, 6e-3, 3e-3, 0.2e-3)

NUM_TOKENS = 21
PREFILL_S = 0.02


def modelled(terms: Sequence[float], survival: Sequence[float] = SURVIVAL) -> Callable[[int, int], float]:
    """Return tokens a second for completions of NUM_TOKENS, by concurrency and K."""

    def goodput(concurrency: int, k: int) -> float:
        steps = (NUM_TOKENS - 1) / (1 + sum(survival[:k]))
        step_s = float(np.dot(terms, (1, concurrency, k > 0, k, k * concurrency)))
        return concurrency * NUM_TOKENS / (PREFILL_S + steps * step_s)

    return goodput


def answer(ended_s: float, num_tokens: int, k: int = 0, *, began_s: float = 0.0) -> Result:
    """Return an answer, of whose draft tokens half are accepted."""
    return Result(
        request(),
        began_s,
        began_s + PREFILL_S,
        ended_s,
        Outcome.ANSWERED,
        num_tokens,
        drafted_tokens=4 * k,
        accepted_tokens=2 * k,
        server=pb.Timings(decode_ms=1000 * (ended_s - began_s - PREFILL_S)),
    )


def k_at(variant: Variant, batch: int) -> int:
    """Return the K of a batch size; the last row holds beyond its end."""
    rows = variant.rows or ()
    return next((k for _first, last, k in rows if batch <= last), rows[-1][2])


def make_sweep(
    goodput: Callable[[int, int], float],
    *,
    variants: Sequence[Variant] = tuple(map(Variant.fixed, KS)),
    noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
) -> Blocks:
    """Return blocks in the order in which they would be measured; with drift, the last is so much slower (log)."""
    chance = np.random.default_rng(seed)
    plan = [
        (number, concurrency, each)
        for number, concurrency, turn in turns(variants, CONCURRENCIES, ROUNDS, str(seed))
        for each in turn
    ]
    blocks = []
    for place, (number, concurrency, variant) in enumerate(plan):
        k = k_at(variant, concurrency)
        slower = np.exp(noise * chance.standard_normal() - drift * place / len(plan))
        rate = goodput(concurrency, k) * slower
        blocks.append(
            Block(variant, concurrency, number, rate, (answer(concurrency * NUM_TOKENS / rate, NUM_TOKENS, k),))
        )
    return Blocks(tuple(blocks))
