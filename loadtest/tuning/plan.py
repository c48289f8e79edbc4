"""In which order variants are measured, so that a drift of the machine meets all of them alike. Pure.

In each round all variants are measured at each concurrency, one right after the other, in a random order; the next
round has the same order reversed (A B C, C B A), which cancels a drift that goes on evenly over both.
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
    """In the order in which they are measured."""


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
