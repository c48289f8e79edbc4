"""Samples of single requests, and their summary as percentiles over blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

_MIN_TOKENS_FOR_RATE = 8
"""With fewer tokens the rate depends on the clock's resolution."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its caller measured it."""

    ttft_ms: float | None
    """Time from the request to the first text; None without text."""
    total_ms: float
    num_tokens: int
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    decode_ms: float | None = None
    """Time from the first token to the last, if the server reports it; the server may hold text back."""

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of the tokens after the first; None for a short completion."""
        decode_ms = self.decode_ms
        if decode_ms is None and self.ttft_ms is not None:
            decode_ms = self.total_ms - self.ttft_ms
        if not decode_ms or self.num_tokens < _MIN_TOKENS_FOR_RATE:
            return None
        return (self.num_tokens - 1) * 1000 / decode_ms


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that ran together."""

    samples: tuple[Sample, ...]
    """Samples in the order of the prompts."""
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests per second of the block."""
        return sum(sample.num_tokens for sample in self.samples) / self.wall_s


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of many blocks of one contestant."""

    ttft_ms_p50: float
    ttft_ms_p95: float
    stream_tokens_per_s_p50: float
    """Median rate of one request, after its first token."""
    tokens_per_s_p50: float
    """Median over blocks of the rate of all requests together."""
    cached_share: float
    """Share of prompt tokens from the prefix cache."""
    acceptance: float
    """Accepted / drafted tokens; nan without a draft."""

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> "Summary":
        """Summarise one or more blocks."""
        samples = [sample for block in blocks for sample in block.samples]
        ttft_ms = [sample.ttft_ms for sample in samples if sample.ttft_ms is not None]
        return cls(
            ttft_ms_p50=percentile(ttft_ms, 50),
            ttft_ms_p95=percentile(ttft_ms, 95),
            stream_tokens_per_s_p50=percentile([rate for each in samples if (rate := each.tokens_per_s)], 50),
            tokens_per_s_p50=percentile([block.tokens_per_s for block in blocks], 50),
            cached_share=_ratio(sum(s.cached_prompt_tokens for s in samples), sum(s.prompt_tokens for s in samples)),
            acceptance=_ratio(sum(s.accepted_draft_tokens for s in samples), sum(s.drafted_tokens for s in samples)),
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return an interpolated percentile; nan for no values."""
    return float(np.percentile(values, percent)) if values else float("nan")


def median_of_pairs(first: Iterable[float | None], second: Iterable[float | None], *, ratio: bool = False) -> float:
    """Return the median of first - second, or of first / second, over pairs measured one after the other.

    A slow drift of the machine cancels. A pair with a None does not count.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return percentile([a / b if ratio else a - b for a, b in pairs], 50)


def rounded(value: float, digits: int = 3) -> float | None:
    """Return a rounded figure for JSON; None for nan."""
    return None if np.isnan(value) else round(value, digits)


def report_console() -> Console:
    """Return the console for tables; without a terminal it has a fixed width."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _ratio(stats: float, whole: float) -> float:
    return stats / whole if whole else float("nan")
