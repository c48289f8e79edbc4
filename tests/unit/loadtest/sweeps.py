"""Sweeps computed from known models: tokens a second by concurrency and K, with noise, and a machine that drifts."""

from collections.abc import Callable, Sequence

import numpy as np

from loadtest.tuning.blocks import Answer, Block, Blocks, Variant
from loadtest.tuning.tuner import turns

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


def make_sweep(
    goodput: Callable[[int, int], float],
    *,
    variants: Sequence[Variant] = tuple(map(Variant.fixed, KS)),
    noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
) -> Blocks:
    """Return blocks in the order in which they would be measured; with drift, the last is so much slower (log).

    Each has one answer, of whose draft tokens half are accepted.
    """
    chance = np.random.default_rng(seed)
    plan = [
        (number, concurrency, each)
        for number, concurrency, turn in turns(variants, CONCURRENCIES, ROUNDS, str(seed))
        for each in turn
    ]
    blocks = []
    for place, (number, concurrency, variant) in enumerate(plan):
        slower = np.exp(noise * chance.standard_normal() - drift * place / len(plan))
        k = variant.k_at(concurrency)
        tokens_per_s = goodput(concurrency, k) * slower
        total_s = concurrency * NUM_TOKENS / tokens_per_s
        answer = Answer(0.0, total_s, PREFILL_S, NUM_TOKENS, 4 * k, 2 * k, total_s - PREFILL_S)
        blocks.append(Block(variant, concurrency, number, tokens_per_s, 1000 * total_s, (answer,)))
    return Blocks(tuple(blocks))
