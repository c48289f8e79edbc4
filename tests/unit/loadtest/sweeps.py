"""Sweeps computed from known models: tokens a second by concurrency and K, with noise, and a machine that drifts."""

from collections.abc import Callable, Sequence

import numpy as np

from loadtest.tuning.blocks import Block, Blocks, Variant
from loadtest.tuning.fit import AcceptanceFit, StepTimeFit
from loadtest.tuning.tuner import turns

CONCURRENCIES = (1, 4, 16, 64)
KS = tuple(range(5))
ROUNDS = 6

DRAFT = AcceptanceFit((0.8, 0.6, 0.42, 0.3))
PAYS_AT_SMALL_BATCHES = StepTimeFit((10e-3, 0.1e-3, 1e-3, 0.5e-3, 0.3e-3))
"""Verifying costs as much as it brings at some forty generations."""
NEVER_PAYS = StepTimeFit((4e-3, 0.2e-3, 6e-3, 3e-3, 0.2e-3))

NUM_TOKENS = 21
PREFILL_S = 0.02


def modelled(times: StepTimeFit, acceptance: AcceptanceFit = DRAFT) -> Callable[[int, int], float]:
    """Return tokens a second for completions of NUM_TOKENS, by concurrency and K."""

    def goodput(concurrency: int, k: int) -> float:
        steps = (NUM_TOKENS - 1) / acceptance.length(k)
        return concurrency * NUM_TOKENS / (PREFILL_S + steps * times.seconds(concurrency, k))

    return goodput


def make_sweep(
    goodput: Callable[[int, int], float],
    *,
    variants: Sequence[Variant] = tuple(map(Variant.fixed, KS)),
    concurrencies: Sequence[int] = CONCURRENCIES,
    noise: float = 0.0,
    drift: float = 0.0,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Blocks:
    """Return blocks in the order in which they would be measured; with drift, the last is so much slower (log)."""
    chance = np.random.default_rng(seed)
    plan = [(turn, each) for turn in turns(variants, concurrencies, rounds, str(seed)) for each in turn.variants]
    blocks = []
    for place, (turn, variant) in enumerate(plan):
        slower = np.exp(noise * chance.standard_normal() - drift * place / len(plan))
        tokens_per_s = goodput(turn.concurrency, variant.k_at(turn.concurrency)) * slower
        blocks.append(
            Block(variant, turn.concurrency, turn.round, tokens_per_s, total_ms=1000 * turn.concurrency / tokens_per_s)
        )
    return Blocks(tuple(blocks))


def make_counted_sweep(times: StepTimeFit, acceptance: AcceptanceFit, *, noise: float = 0.0, seed: int = 0) -> Blocks:
    """Return a sweep with the drafts, steps and step times of the model, which a fit needs."""
    chance = np.random.default_rng(seed)
    goodput, num_answers, blocks = modelled(times, acceptance), 40_000, []
    for turn in turns(tuple(map(Variant.fixed, KS)), CONCURRENCIES, ROUNDS, str(seed)):
        for variant in turn.variants:
            assert variant.k is not None
            slower = float(np.exp(noise * chance.standard_normal()))
            num_steps = num_answers * (NUM_TOKENS - 1) / acceptance.length(variant.k)
            blocks.append(
                Block(
                    variant,
                    turn.concurrency,
                    turn.round,
                    goodput(turn.concurrency, variant.k) / slower,
                    num_answers=num_answers,
                    num_tokens=num_answers * NUM_TOKENS,
                    num_drafted=round(num_steps) * variant.k,
                    num_accepted=round(num_steps * (acceptance.length(variant.k) - 1)),
                    num_steps=round(num_steps),
                    decode_s=num_steps * times.seconds(turn.concurrency, variant.k) * slower,
                    mean_batch=turn.concurrency,
                )
            )
    return Blocks(tuple(blocks))
