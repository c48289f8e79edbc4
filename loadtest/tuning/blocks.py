"""Measured blocks: traffic with one K at one concurrency. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

    def k_at(self, batch: int) -> int:
        """Return the K of a batch size; the last row holds beyond its end. There must be rows."""
        rows = self.rows or ()
        return next((k for _first, last, k in rows if batch <= last), rows[-1][2])


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its caller measured it. Times are in seconds, the first two from the block's start."""

    began_s: float
    ended_s: float
    ttft_s: float | None
    """Time from the request to the first visible text; None without text."""
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    decode_s: float = 0.0
    """Time from the first token to the last, as reported by the server."""
    is_cached: bool = False
    """Whether it came from the server's completion cache."""
    shed_reason: str | None = None
    """Why the request was shed; None if it was not."""

    @property
    def total_s(self) -> float:
        """Time from the request to its end."""
        return self.ended_s - self.began_s

    def share_in(self, window_s: float) -> float:
        """Return the share of the request's time that lies before the window's end."""
        if self.ended_s <= window_s or self.total_s <= 0:
            return 1.0
        return max(0.0, window_s - self.began_s) / self.total_s


@dataclass(frozen=True, slots=True)
class Block:
    """Traffic with one variant at one concurrency."""

    variant: Variant
    concurrency: int
    round: int
    goodput: float
    """Completion tokens per second."""
    total_ms: float = float("nan")
    """Median time of a whole completion."""
    answers: tuple[Answer, ...] = ()
    """Whole answers."""
    shed: tuple[str, ...] = ()
    """The reason of each shed request."""

    @classmethod
    def of(cls, variant: Variant, concurrency: int, number: int, answers: Sequence[Answer], window_s: float) -> "Block":
        """Sum up the answers of a block during whose first `window_s` all callers were active.

        An answer that ends later counts by the share of its time in the window, so that the duration of completions
        does not bias the rate.
        """
        whole = tuple(each for each in answers if each.shed_reason is None)
        return cls(
            variant=variant,
            concurrency=concurrency,
            round=number,
            goodput=sum(each.share_in(window_s) * each.num_tokens for each in whole) / window_s,
            total_ms=1000 * float(np.median([each.total_s for each in whole])) if whole else float("nan"),
            answers=whole,
            shed=tuple(each.shed_reason for each in answers if each.shed_reason is not None),
        )


@dataclass(frozen=True, slots=True)
class Blocks:
    """Measured blocks: each variant once per round at each concurrency."""

    all: tuple[Block, ...]

    @property
    def cells(self) -> list[tuple[int, Variant]]:
        """Each concurrency with each variant, both rising."""
        return [(concurrency, variant) for concurrency in self.concurrencies for variant in self.variants]

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
    def answers(self) -> list[Answer]:
        """The whole answers."""
        return [answer for each in self.all for answer in each.answers]

    @property
    def num_cached(self) -> int:
        """Answers that came from a server's completion cache."""
        return sum(each.is_cached for each in self.answers)

    def of(self, concurrency: int, name: str) -> "Blocks":
        """Return a variant's blocks at a concurrency, by round."""
        found = [each for each in self.all if (each.concurrency, each.variant.name) == (concurrency, name)]
        return Blocks(tuple(sorted(found, key=lambda each: each.round)))

    def goodput(self, concurrency: int, name: str) -> Array:
        """Return a variant's tokens per second, of shape (rounds,)."""
        return np.array([each.goodput for each in self.of(concurrency, name).all])

    def total_ms(self, concurrency: int, name: str) -> Array:
        """Return a variant's median time of a completion, of shape (rounds,)."""
        return np.array([each.total_ms for each in self.of(concurrency, name).all])
