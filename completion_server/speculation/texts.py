"""Gains of rounds as if each of them had all texts. Pure.

Completions differ far more in how predictable they are than a machine differs from one second to the next: few of them
give most of the gain. But how many steps a text takes with a K is known exactly, and depends neither on the machine nor
on the batch size. So the duration of a request is fitted as a line over its steps, for each batch size and K, and the
gain that the lines predict for a round's texts is exchanged for the one that they predict for all texts of all batch
sizes: a control variate. What is left of the differences between rounds is the machine's noise.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

OFF = 0
_MAX_OVER_LINE = 3.0
"""Residuals of more than this many times their median do not bend a line."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A request that was completed."""

    num_tokens: int
    num_steps: int
    seconds: float


TypedRound = Mapping[int, Sequence[Typed]]
"""The same requests with each K."""


def log_gains(rounds: Mapping[int, Sequence[TypedRound]], ks: Sequence[int]) -> dict[int, dict[int, list[float]]]:
    """Return the logarithm of each K's tokens/s over those without drafts, for the rounds of each batch size."""
    return {size: {k: _log_gains(own, k, rounds.values()) for k in ks} for size, own in rounds.items()}


def text_errors(rounds: Mapping[int, Sequence[TypedRound]], ks: Sequence[int]) -> dict[int, dict[int, float]]:
    """Return the standard error that all rounds of a batch size share for each K: that of the predicted gain.

    Other texts would have given another prediction. The error is the jackknife's over the requests of all batch sizes.
    """
    return {size: {k: _text_error(own, k, rounds.values()) for k in ks} for size, own in rounds.items()}


def tokens_per_s(size: int, requests: Sequence[Typed]) -> float:
    """Return the tokens/s of `size` callers of which each asks again at once (Little's law)."""
    return size * sum(each.num_tokens for each in requests) / _seconds(requests)


def _log_gains(own: Sequence[TypedRound], k: int, all_rounds: Iterable[Sequence[TypedRound]]) -> list[float]:
    paired = [(each[OFF], each[k]) for each in own if k in each]
    if not paired:
        return []
    off, with_k = (_Line([each for pair in paired for each in pair[side]]) for side in (0, 1))
    texts = [each for rounds in all_rounds for each in rounds if k in each]
    everywhere = math.log(
        off.mean_s(each for text in texts for each in text[OFF])
        / with_k.mean_s(each for text in texts for each in text[k])
    )
    return [
        math.log(_tokens_over_seconds(after) / _tokens_over_seconds(before))
        - math.log(off.mean_s(before) / with_k.mean_s(after))
        + everywhere
        for before, after in paired
    ]


def _text_error(own: Sequence[TypedRound], k: int, all_rounds: Iterable[Sequence[TypedRound]]) -> float:
    paired = [(each[OFF], each[k]) for each in own if k in each]
    if not paired:
        return 0.0
    off, with_k = (_Line([each for pair in paired for each in pair[side]]) for side in (0, 1))
    texts = [each for rounds in all_rounds for each in rounds if k in each]
    before = [off.seconds(each) for text in texts for each in text[OFF]]
    after = [with_k.seconds(each) for text in texts for each in text[k]]
    num, total_before, total_after = len(before), math.fsum(before), math.fsum(after)
    if num <= 1:
        return 0.0
    without = [math.log((total_before - one) / (total_after - other)) for one, other in zip(before, after, strict=True)]
    mean = fmean(without)
    return math.sqrt((num - 1) / num * math.fsum((each - mean) ** 2 for each in without))


class _Line:
    """The duration of a request over its steps."""

    def __init__(self, requests: Sequence[Typed]) -> None:
        """Fit it by least squares, again without what is far off: requests that another process delayed."""
        self._fit(requests)
        residuals = [abs(each.seconds - self._at(each.num_steps)) for each in requests]
        most = _MAX_OVER_LINE * median(residuals)
        self._fit([each for each, residual in zip(requests, residuals, strict=True) if residual <= most])

    def _fit(self, requests: Sequence[Typed]) -> None:
        steps, seconds = fmean(each.num_steps for each in requests), fmean(each.seconds for each in requests)
        spread = sum((each.num_steps - steps) ** 2 for each in requests)
        product = sum((each.num_steps - steps) * (each.seconds - seconds) for each in requests)
        # No step takes longer than the requests did in all.
        self._slope = min(max(0.0, product / spread), seconds / steps) if spread else 0.0
        self._base = seconds - self._slope * steps

    def _at(self, num_steps: float) -> float:
        return self._base + self._slope * num_steps

    def seconds(self, request: Typed) -> float:
        """Return the duration that the line predicts for a request."""
        return max(1e-9, self._at(request.num_steps))

    def mean_s(self, requests: Iterable[Typed]) -> float:
        """Return the mean duration that the line predicts."""
        return max(1e-9, self._at(fmean(each.num_steps for each in requests)))


def _tokens_over_seconds(requests: Sequence[Typed]) -> float:
    return max(1, sum(each.num_tokens for each in requests)) / _seconds(requests)


def _seconds(requests: Sequence[Typed]) -> float:
    return max(1e-9, sum(each.seconds for each in requests))
