"""Measured blocks: traffic with one K at one concurrency. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.targets.record import Outcome, Result

Rows = tuple[tuple[int, int, int], ...]
"""A speculation schedule: rows of (first, last, K), as `completion-server speculation set --schedule` takes them."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Variant:
    """A setting of speculation to measure."""

    name: str
    rows: Rows | None = None
    """The schedule to set; None leaves the server's schedule as it is."""
    k: int | None = None
    """The K, if it is the same for all batch sizes."""

    @classmethod
    def fixed(cls, k: int) -> "Variant":
        """Return the variant with one K for all batch sizes."""
        return cls(f"K = {k}", ((1, 1, k),), k)


@dataclass(frozen=True, slots=True)
class Block:
    """Traffic with one variant at one concurrency."""

    variant: Variant
    concurrency: int
    round: int
    goodput: float
    """Completion tokens per second."""
    answers: tuple[Result, ...] = ()
    """Whole answers."""
    shed: tuple[str, ...] = ()
    """The reason of each shed request."""

    @classmethod
    def of(cls, variant: Variant, concurrency: int, number: int, results: Sequence[Result], window_s: float) -> "Block":
        """Sum up a block during whose first `window_s` all callers were active.

        An answer that ends later counts by the share of its time in the window, so that the duration of completions
        does not bias the rate.
        """
        answers = tuple(each for each in results if each.outcome is not Outcome.SHED)
        tokens = sum(_share_in(window_s, each) * each.completion_tokens for each in answers)
        shed = tuple(each.shed_reason or "shed" for each in results if each.outcome is Outcome.SHED)
        return cls(variant, concurrency, number, tokens / window_s, answers, shed)


def _share_in(window_s: float, answer: Result) -> float:
    if answer.ended_at_s is None or answer.ended_at_s <= window_s:
        return 1.0
    return max(0.0, window_s - answer.sent_at_s) / (answer.ended_at_s - answer.sent_at_s)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Measured blocks: each variant once per round at each concurrency."""

    all: tuple[Block, ...]

    @property
    def concurrencies(self) -> list[int]:
        """The concurrencies, rising."""
        return sorted({each.concurrency for each in self.all})

    @property
    def variants(self) -> list[Variant]:
        """The variants by rising K, then the others by name."""
        return sorted({each.variant for each in self.all}, key=lambda each: (each.k is None, each.k or 0, each.name))

    @property
    def ks(self) -> list[int]:
        """The Ks of the variants with one K for all batch sizes, rising."""
        return [each.k for each in self.variants if each.k is not None]

    @property
    def answers(self) -> list[Result]:
        """The whole answers."""
        return [answer for each in self.all for answer in each.answers]

    @property
    def num_cached(self) -> int:
        """Answers that came from a server's completion cache."""
        return sum(bool(each.cache_level) for each in self.answers)

    def of(self, concurrency: int, variant: Variant) -> "Blocks":
        """Return a variant's blocks at a concurrency, by round."""
        found = [each for each in self.all if (each.concurrency, each.variant) == (concurrency, variant)]
        return Blocks(tuple(sorted(found, key=lambda each: each.round)))

    def goodput(self, concurrency: int, variant: Variant) -> Array:
        """Return a variant's tokens per second, of shape (rounds,)."""
        return np.array([each.goodput for each in self.of(concurrency, variant).all])
