"""Decides whether a K above 0 pays at a batch size. Pure; the trial at start and `loadtest tune-k` both use it.

In each round every K completes the same texts right after one another. A round gives one number for each K: the
logarithm of its tokens/s over those without drafts, in which the texts and a slow drift of the machine cancel.

**Estimate.** The mean over rounds without the highest and the lowest fifth of them, so that a round that another
process disturbed does not decide. Its interval is that of Tukey and McLaughlin (Sankhya A 25, 1963; Yuen, Biometrika
61, 1974): Student's t with h - 1 degrees of freedom for the h rounds that are left, and the winsorised variance of
all, plus that of what all rounds share.

**Test.** "No gain" against "a gain of 5%". A K is shown to gain if its interval excludes 1, and dropped if it excludes
1.03, or if another K is shown to be better. If the interval is so short that it excludes both, the half of 3% decides:
below 3% either choice is right to within 3% of the tokens/s.

**Error rates.** At each batch size drafts that gain nothing are chosen with a probability of at most `ALPHA`, and a K
that gains 5% is dropped with one of at most `BETA`, as long as rounds are added until it is decided. Each look spends a
share of the rates (alpha spending: Lan and DeMets, Biometrika 70, 1983): the last one half of it, look j before it
1 / (j (j + 1)) of the other half. Bonferroni divides `ALPHA` by the number of Ks, because the best of several looks
better than it is; dropping all of them by mistake includes dropping the best one, so `BETA` is not divided.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

ALPHA = 0.1
BETA = 0.1
GAIN = 0.05
"""The gain that the test must find."""
LAST_SHARE = 0.5
"""The share of the error rates that is left for the last look."""
OFF = 0

_TRIM = 0.2
_MAX_LOSS = math.log(1.03)
"""What a wrong choice may cost: a K whose gain is less is dropped, and one that others beat by less is taken."""
_TIE = math.log(1.01)
"""Of Ks that differ by less the smallest is taken: what a run can't tell apart."""
FIRST_LOOK = 5
"""Rounds after which the test first looks at the data; each next look comes after about 1.41 times as many."""
_MIN_ROUNDS = 3

Schedule = tuple[tuple[int, int, int], ...]
"""Rows of [first, last, K]."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A ratio of tokens/s with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.value:.2f} times ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The state of the test at one batch size."""

    k: int | None
    """The K that is chosen; None as long as that is open."""
    best_k: int
    """The K above 0 with the largest estimate; 0 without any."""
    gains: Mapping[int, Gain]
    """The tokens/s of each K above 0 over those without drafts. Empty with fewer than three rounds."""
    dropped: frozenset[int]
    """The Ks that are shown not to gain, or to gain less than another."""


def compare(
    log_gains: Mapping[int, Sequence[float]],
    share: float = 1.0,
    *,
    is_last: bool = True,
    dropped: Collection[int] = (),
    shared_errors: Mapping[int, float] | None = None,
) -> Comparison:
    """Return what the rounds show of each K above 0, given the logarithm of its gain in each of them.

    `share` is the part of the error rates that this look spends. At the last look K is chosen in any case: 0 if no
    gain is shown. `shared_errors` are the standard errors of what all rounds of a K share. `dropped` are those of
    earlier looks, which may have fewer rounds.
    """
    measured = {k: values for k, values in log_gains.items() if len(values) >= _MIN_ROUNDS and k not in dropped}
    if not measured:
        return Comparison(OFF if is_last else None, OFF, {}, frozenset(dropped))
    alpha, beta = share * ALPHA / len(log_gains), share * BETA
    shared = dict.fromkeys(measured, 0.0) | dict(shared_errors or {})
    means = {k: trimmed_mean(values) for k, values in measured.items()}
    margins = {k: margin(values, alpha, shared[k]) for k, values in measured.items()}
    leader = max(means, key=lambda k: means[k])
    rejected = {
        k
        for k, values in measured.items()
        if means[k] + margin(values, beta, shared[k]) < _MAX_LOSS
        or (k != leader and _is_beaten(values, measured[leader], beta))
    }
    shown = {k for k in means if means[k] - margins[k] > 0} - {k for k in rejected if means[k] < _MAX_LOSS / 2}
    gains = {k: Gain(*map(math.exp, (means[k], means[k] - margins[k], means[k] + margins[k]))) for k in means}
    chosen = min((k for k in shown if means[k] > max(means[each] for each in shown) - _TIE), default=OFF)
    open_ks = set(means) - rejected - {chosen}
    is_settled = all(_is_beaten(measured[k], measured.get(chosen, ()), beta, _MAX_LOSS) for k in open_ks)
    is_over = is_last or (not open_ks if chosen == OFF else is_settled)
    return Comparison(chosen if is_over else None, leader, gains, frozenset({*dropped, *(rejected - shown)}))


def share_after(num_rounds: int) -> float | None:
    """Return the share of the error rates that a look after so many rounds spends; None if there is no look then."""
    number = max(1, 1 + round(2 * math.log2(max(1, num_rounds) / FIRST_LOOK)))
    if num_rounds != int(FIRST_LOOK * math.sqrt(2) ** (number - 1) + 1e-9):
        return None
    return (1 - LAST_SHARE) / (number * (number + 1))


def rows_of(chosen: Mapping[int, int], max_batch_size: int) -> Schedule:
    """Return the schedule of the K chosen at each measured batch size, up to the largest batch size.

    A batch size between two measured ones gets the K of the nearer one, by ratio.
    """
    sizes = sorted(chosen)
    lasts = [max(low, math.isqrt(low * high)) for low, high in pairwise(sizes)]
    rows: list[tuple[int, int, int]] = []
    for size, last in zip(sizes, [*lasts, max_batch_size], strict=True):
        if rows and rows[-1][2] == chosen[size]:
            rows[-1] = (rows[-1][0], last, chosen[size])
        else:
            rows.append((rows[-1][1] + 1 if rows else 1, last, chosen[size]))
    return tuple(rows)


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the highest and the lowest fifth."""
    cut = _num_cut(len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return math.fsum(kept) / len(kept)


def margin(values: Sequence[float], error_rate: float, shared_error: float = 0.0) -> float:
    """Return how far the truth may be above the trimmed mean, or below it, each with the probability `error_rate`."""
    from scipy.special import stdtrit  # half a second that a server without a trial saves

    num, cut = len(values), _num_cut(len(values))
    ordered = sorted(values)
    winsorised = [min(max(each, ordered[cut]), ordered[num - cut - 1]) for each in values]
    mean = math.fsum(winsorised) / num
    variance = math.fsum((each - mean) ** 2 for each in winsorised) / (num - 1)
    kept = num - 2 * cut
    quantile = float(stdtrit(kept - 1, 1 - error_rate))
    return quantile * math.hypot(math.sqrt(variance * num) / kept, shared_error)


def _num_cut(num: int) -> int:
    """Return how many of so many rounds are left out on each side: a fifth, fewer while they are few."""
    return int(_TRIM * (num - 1))


def _is_beaten(values: Sequence[float], others: Sequence[float], error_rate: float, most: float = 0.0) -> bool:
    """Return whether a K is shown to give at most `most` more than another one, in the rounds that have both."""
    differences = [value - other for value, other in zip(values, others, strict=False)]
    return len(differences) >= _MIN_ROUNDS and trimmed_mean(differences) + margin(differences, error_rate) < most
