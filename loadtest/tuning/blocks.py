"""Measured blocks: traffic with one K at one concurrency. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadtest.stats import Histogram
from loadtest.traffic.sections import CriteriaSettings

Rows = tuple[tuple[int, int, int], ...]
"""A speculation schedule: rows of (first, last, K), as `completion-server speculation set --schedule` takes them."""

Array = npt.NDArray[np.float64]

MS = 1000.0


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
    stands_s: float = float("inf")
    """Time from the request to the user's next key."""
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    decode_s: float = 0.0
    """Time from the first token to the last, as reported by the server."""
    engine_s: float = 0.0
    """Time from the start of the prefill to the last token, as reported by the server."""
    is_cached: bool = False
    """Whether it came from the server's completion cache."""
    shed_reason: str | None = None
    """Why the request was shed; None if it was not."""

    @property
    def total_s(self) -> float:
        """Time from the request to its end."""
        return self.ended_s - self.began_s

    @property
    def num_steps(self) -> int:
        """Number of steps after the first token: each gave one token and the accepted draft tokens."""
        return max(0, self.num_tokens - 1 - self.num_accepted)

    def share_in(self, window_s: float) -> float:
        """Return the share of the request's time that lies before the window's end."""
        if self.ended_s <= window_s or self.total_s <= 0:
            return 1.0
        return max(0.0, window_s - self.began_s) / self.total_s

    def is_seen(self, criteria: CriteriaSettings) -> bool:
        """Return whether the user saw the text: it came in time and long enough before the next key."""
        if self.ttft_s is None:
            return False
        stands_s = self.stands_s - self.ttft_s
        return self.ttft_s <= criteria.within_ms / MS and stands_s >= criteria.before_next_key_ms / MS


@dataclass(frozen=True, slots=True)
class Block:
    """Traffic with one variant at one concurrency."""

    variant: Variant
    concurrency: int
    round: int
    goodput: float
    """Completion tokens per second."""
    num_answers: int = 0
    """Whole answers."""
    num_cached: int = 0
    """Answers that came from the server's completion cache."""
    num_tokens: int = 0
    """Tokens of whole answers."""
    num_seen: float = 0.0
    window_s: float = 1.0
    """Time during which all callers were active."""
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    """Summed over generations."""
    decode_s: float = 0.0
    """Summed over generations."""
    mean_batch: float = 0.0
    """Mean number of generations in the engine over the window."""
    total_ms: float = float("nan")
    """Median time of a whole completion."""
    stream_tokens_per_s: float = float("nan")
    """Median rate of one request after its first token."""
    shed: tuple[str, ...] = ()
    """The reason of each shed request."""
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

        An answer that ends after the window counts by the share of its time in the window, so that the duration of
        completions does not bias the rate.
        """
        whole = [each for each in answers if each.shed_reason is None]
        shares = [each.share_in(window_s) for each in whole]
        return cls(
            variant=variant,
            concurrency=concurrency,
            round=number,
            goodput=_dot(shares, [each.num_tokens for each in whole]) / window_s,
            num_answers=len(whole),
            num_cached=sum(each.is_cached for each in whole),
            num_tokens=sum(each.num_tokens for each in whole),
            num_seen=_dot(shares, [each.is_seen(criteria) for each in whole]),
            window_s=window_s,
            num_drafted=sum(each.num_drafted for each in whole),
            num_accepted=sum(each.num_accepted for each in whole),
            num_steps=sum(each.num_steps for each in whole),
            decode_s=sum(each.decode_s for each in whole),
            mean_batch=_dot(shares, [each.engine_s for each in whole]) / window_s,
            total_ms=_median([each.total_s * MS for each in whole]),
            stream_tokens_per_s=_median(
                [(each.num_tokens - 1) / each.decode_s for each in whole if each.num_tokens > 1 and each.decode_s]
            ),
            shed=tuple(each.shed_reason for each in answers if each.shed_reason is not None),
            ttft=_histogram(each.ttft_s for each in whole),
            total=_histogram(each.total_s for each in whole),
        )

    @property
    def seen_per_s(self) -> float:
        """Seen completions per second."""
        return self.num_seen / self.window_s


@dataclass(frozen=True, slots=True)
class Blocks:
    """Measured blocks: each variant once per round at each concurrency."""

    all: tuple[Block, ...]

    @property
    def cells(self) -> list[tuple[int, Variant]]:
        """Each concurrency with each variant."""
        return [(concurrency, variant) for concurrency in self.concurrencies for variant in self.variants]

    @property
    def concurrencies(self) -> list[int]:
        """The concurrencies, rising."""
        return sorted({each.concurrency for each in self.all})

    @property
    def variants(self) -> list[Variant]:
        """The variants by rising K, then the others by name."""
        found = {each.variant for each in self.all}
        return sorted(found, key=lambda each: (each.k is None, each.k or 0, each.name))

    @property
    def ks(self) -> list[int]:
        """The Ks of the variants with one K for all batch sizes, rising."""
        return [each.k for each in self.variants if each.k is not None]

    @property
    def max_num_speculative_tokens(self) -> int:
        """The largest K."""
        return max(self.ks, default=0)

    @property
    def num_cached(self) -> int:
        """Answers that came from a server's completion cache."""
        return sum(each.num_cached for each in self.all)

    def of(self, concurrency: int, name: str) -> list[Block]:
        """Return a variant's blocks at a concurrency, by round."""
        found = [each for each in self.all if each.concurrency == concurrency and each.variant.name == name]
        return sorted(found, key=lambda each: each.round)

    def goodput(self, concurrency: int, name: str) -> Array:
        """Return a variant's tokens per second, of shape (rounds,)."""
        return np.array([each.goodput for each in self.of(concurrency, name)])

    def mean_goodput(self, concurrency: int, name: str) -> float:
        """Return a variant's mean tokens per second over the rounds."""
        return float(np.mean(self.goodput(concurrency, name)))

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
