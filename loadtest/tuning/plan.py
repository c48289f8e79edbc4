"""Plans the order of measurements so that a drift of the machine affects all variants equally. Pure.

In each round all variants are measured at each concurrency, one after another, in random order. The next round has the
reverse order (A B C, C B A), which cancels a linear drift over both.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.tuning.blocks import Variant


@dataclass(frozen=True, slots=True)
class Turn:
    """One round at one concurrency: all variants on the same traffic."""

    round: int
    concurrency: int
    variants: tuple[Variant, ...]
    """Variants in the order of measurement."""


def turns(variants: Sequence[Variant], concurrencies: Sequence[int], rounds: int, seed: str) -> Iterator[Turn]:
    """Yield the turns of a measurement, round by round."""
    chance = random.Random(seed)
    orders: dict[int, list[Variant]] = {}
    for number in range(rounds):
        for concurrency in concurrencies if number % 2 == 0 else reversed(concurrencies):
            if number % 2 == 0:
                orders[concurrency] = chance.sample(list(variants), len(variants))
            else:
                orders[concurrency].reverse()
            yield Turn(number, concurrency, tuple(orders[concurrency]))
