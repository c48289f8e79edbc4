"""Gains of rounds as if each of them had all texts. Pure.

Completions differ far more in how predictable they are than a machine differs from one second to the next: few of them
give most of the gain. But how many steps a text takes with a K is known exactly, and depends neither on the machine nor
on the batch size. So the duration of a request is fitted as a line over its steps, for each batch size and K, and the
gain that the lines predict for a round's texts is exchanged for the one that they predict for all texts of all batch
sizes: a control variate. What is left of the differences between rounds is the machine's noise.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression, median

from completion_server.engine.speculation.comparison import OFF

_MAX_OVER_LINE = 3.0
"""Residuals of more than this many times their median do not bend a line."""
_MIN_S = 1e-9


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
    return {size: {k: _gains(own, k, rounds.values())[0] for k in ks} for size, own in rounds.items()}


def text_errors(rounds: Mapping[int, Sequence[TypedRound]], ks: Sequence[int]) -> dict[int, dict[int, float]]:
    """Return the standard error that all rounds of a batch size share for each K: that of the predicted gain.

    Other texts would have given another prediction. The error is the jackknife's over the requests of all batch sizes.
    """
    return {size: {k: _gains(own, k, rounds.values())[1] for k in ks} for size, own in rounds.items()}


def tokens_per_s(size: int, requests: Sequence[Typed]) -> float:
    """Return the tokens/s of `size` callers of which each asks again at once (Little's law)."""
    return size * sum(each.num_tokens for each in requests) / max(_MIN_S, sum(each.seconds for each in requests))


def _gains(own: Sequence[TypedRound], k: int, all_rounds: Iterable[Sequence[TypedRound]]) -> tuple[list[float], float]:
    """Return the gain of each round with all texts, and the standard error that the texts give it."""
    paired = [each for each in own if k in each]
    if not paired:
        return [], 0.0
    off_s, with_k_s = (_line([each for made in paired for each in made[side]]) for side in (OFF, k))
    texts = [each for rounds in all_rounds for each in rounds if k in each]
    before = [off_s(each) for made in texts for each in made[OFF]]
    after = [with_k_s(each) for made in texts for each in made[k]]
    num, total_before, total_after = len(before), math.fsum(before), math.fsum(after)
    found = [
        math.log(max(1e-9, tokens_per_s(1, made[k])) / max(1e-9, tokens_per_s(1, made[OFF])))
        - math.log(fmean(map(off_s, made[OFF])) / fmean(map(with_k_s, made[k])))
        + math.log(total_before / total_after)
        for made in paired
    ]
    if num == 1:
        return found, 0.0
    without = [math.log((total_before - one) / (total_after - other)) for one, other in zip(before, after, strict=True)]
    mean = fmean(without)
    return found, math.sqrt((num - 1) / num * math.fsum((each - mean) ** 2 for each in without))


def _line(requests: Sequence[Typed]) -> Callable[[Typed], float]:
    """Return the duration of a request over its steps: a line, fitted again without requests that were delayed."""
    line = _fit(requests)
    residuals = [abs(each.seconds - line(each)) for each in requests]
    most = _MAX_OVER_LINE * median(residuals)
    return _fit([each for each, residual in zip(requests, residuals, strict=True) if residual <= most])


def _fit(requests: Sequence[Typed]) -> Callable[[Typed], float]:
    steps, seconds = [each.num_steps for each in requests], [each.seconds for each in requests]
    slope = linear_regression(steps, seconds).slope if len(set(steps)) > 1 else 0.0
    slope = min(max(0.0, slope), fmean(seconds) / fmean(steps))  # no step takes longer than the requests did in all
    base = fmean(seconds) - slope * fmean(steps)
    return lambda request: max(_MIN_S, base + slope * request.num_steps)
