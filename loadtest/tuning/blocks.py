"""What a stretch of traffic under one K came to. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadtest.stats.run_stats import Histogram
from loadtest.traffic.scenario import CriteriaSettings

Rows = tuple[tuple[int, int, int], ...]
"""A schedule: rows of (first, last, K), as `completion-server speculation set --schedule` takes them."""

Array = npt.NDArray[np.float64]

MS = 1000.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to serve that is measured against others."""

    name: str
    rows: Rows | None = None
    """What is put in force for it; None leaves its server as it is."""
    k: int | None = None
    """Where it is one K for all batch sizes."""

    @classmethod
    def fixed(cls, k: int) -> "Variant":
        """Return the one with K for all batch sizes."""
        return cls(f"K = {k}", ((1, 1, k),), k)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its caller lived it. Times are in seconds, the first two from the block's start."""

    began_s: float
    ended_s: float
    ttft_s: float | None
    """From the request to the first visible text; None where none came."""
    stands_s: float = float("inf")
    """From the request to the user's next key."""
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    decode_s: float = 0.0
    """From the first token to the last, as the server says."""
    engine_s: float = 0.0
    """From the engine's receipt of the prompt to the last token, as the server says."""
    shed_reason: str | None = None
    """Where it was turned away: why."""

    @property
    def total_s(self) -> float:
        """From the request to its end."""
        return self.ended_s - self.began_s

    @property
    def num_steps(self) -> int:
        """Steps after the one that gave the first token: each gave one token and those accepted."""
        return max(0, self.num_tokens - 1 - self.num_accepted)

    def share_in(self, window_s: float) -> float:
        """Return how much of its time lies before the window's end."""
        if self.ended_s <= window_s or self.total_s <= 0:
            return 1.0
        return max(0.0, window_s - self.began_s) / self.total_s

    def is_seen(self, criteria: CriteriaSettings) -> bool:
        """Tell whether its user saw text: soon enough, and long enough before the next key, as in any load test."""
        if self.ttft_s is None:
            return False
        stands_s = self.stands_s - self.ttft_s
        return self.ttft_s <= criteria.within_ms / MS and stands_s >= criteria.before_next_key_ms / MS


@dataclass(frozen=True, slots=True)
class Block:
    """One stretch of traffic with one variant at one concurrency."""

    variant: Variant
    concurrency: int
    round: int
    goodput: float
    """Tokens of completions, a second."""
    num_answers: int = 0
    """Whole ones."""
    num_tokens: int = 0
    """Of whole answers."""
    num_seen: float = 0.0
    window_s: float = 1.0
    """While all callers were at work."""
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    """Summed over generations."""
    decode_s: float = 0.0
    """Summed over generations."""
    mean_batch: float = 0.0
    """Generations in the engine, on average over the window."""
    total_ms: float = float("nan")
    """Median time of a whole completion."""
    ttft_ms: float = float("nan")
    """Median time to the first visible text."""
    stream_tokens_per_s: float = float("nan")
    """Of one request after its first token, the median."""
    shed: tuple[str, ...] = ()
    """Why requests were turned away, one for each."""
    ttft: Histogram = field(default_factory=Histogram, compare=False)
    total: Histogram = field(default_factory=Histogram, compare=False)

    @classmethod
    def of(
        cls,
        variant: Variant,
        concurrency: int,
        number: int,
        answers: Sequence[Answer],
        window_s: float,
        criteria: CriteriaSettings,
    ) -> "Block":
        """Sum answers up.

        What ends after the window counts by the share of its time in the window: how long a completion takes does then
        not decide how much of it is seen.
        """
        whole = [each for each in answers if each.shed_reason is None]
        shares = [each.share_in(window_s) for each in whole]
        ttft, total = _histogram(each.ttft_s for each in whole), _histogram(each.total_s for each in whole)
        return cls(
            variant=variant,
            concurrency=concurrency,
            round=number,
            goodput=_dot(shares, [each.num_tokens for each in whole]) / window_s,
            num_answers=len(whole),
            num_tokens=sum(each.num_tokens for each in whole),
            num_seen=_dot(shares, [each.is_seen(criteria) for each in whole]),
            window_s=window_s,
            num_drafted=sum(each.num_drafted for each in whole),
            num_accepted=sum(each.num_accepted for each in whole),
            num_steps=sum(each.num_steps for each in whole),
            decode_s=sum(each.decode_s for each in whole),
            mean_batch=_dot(shares, [each.engine_s for each in whole]) / window_s,
            total_ms=_median([each.total_s * MS for each in whole]),
            ttft_ms=_median([each.ttft_s * MS for each in whole if each.ttft_s is not None]),
            stream_tokens_per_s=_median(
                [(each.num_tokens - 1) / each.decode_s for each in whole if each.num_tokens > 1 and each.decode_s]
            ),
            shed=tuple(each.shed_reason for each in answers if each.shed_reason is not None),
            ttft=ttft,
            total=total,
        )

    @property
    def seen_per_s(self) -> float:
        """Completions that their users saw, a second."""
        return self.num_seen / self.window_s


@dataclass(frozen=True, slots=True)
class Blocks:
    """Measured blocks: each variant the same number of times at each concurrency, once in each round."""

    all: tuple[Block, ...]

    @property
    def concurrencies(self) -> list[int]:
        """The concurrencies, rising."""
        return sorted({each.concurrency for each in self.all})

    @property
    def variants(self) -> list[Variant]:
        """The variants, K rising, others behind in order of their names."""
        found = {each.variant for each in self.all}
        return sorted(found, key=lambda each: (each.k is None, each.k or 0, each.name))

    @property
    def ceiling(self) -> int:
        """The largest K."""
        return max((each.k for each in self.variants if each.k is not None), default=0)

    def of(self, concurrency: int, name: str) -> list[Block]:
        """Return a variant's blocks at a concurrency, by round."""
        found = [each for each in self.all if each.concurrency == concurrency and each.variant.name == name]
        return sorted(found, key=lambda each: each.round)

    def goodput(self, concurrency: int, name: str) -> Array:
        """Return a variant's tokens a second, of shape (rounds,)."""
        return np.array([each.goodput for each in self.of(concurrency, name)])

    def total_ms(self, concurrency: int, name: str) -> Array:
        """Return a variant's median time of a completion, of shape (rounds,)."""
        return np.array([each.total_ms for each in self.of(concurrency, name)])


def _histogram(times_s: Iterable[float | None]) -> Histogram:
    found = Histogram()
    for each in times_s:
        if each is not None:
            found.record(each)
    return found


def _dot(shares: Sequence[float], values: Sequence[float]) -> float:
    return float(np.dot(shares, values)) if shares else 0.0


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else float("nan")
