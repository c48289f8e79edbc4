"""Rollouts in which one of several servers is a canary, judged by what its users do.

The recording rules of deploy/monitoring compute the same ratio as `log_likelihood_ratio`; a test compares the two.
docs/canary.md explains it. Time is in minutes from the moment on which the canary serves.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from completion_server.ops.quality import NUM_USER_GROUPS

WORSE = 0.2
"""The loss that the test looks for: the canary's share is lower by this part of the stable share."""
LIMIT = 5.7
"""The canary is taken back from here on: ln 300, so that three tests of an equal canary fail in 1% of the rollouts."""
MIN_CASES = 400
MIN_GROUPS = 16
"""Of the canary, in groups of equal size. Below either a share is not judged."""
BEGIN = 5
"""From this minute on the canary's answers are compared: its caches are warm."""
_QUARTER = 15
_DAY = 1440

Values = NDArray[np.float64]
Variance = Callable[[Values, Values], Values]


class Share(IntEnum):
    """The shares that are judged, in the order of the arrays."""

    WITH_TEXT = 0
    """Of the answers."""
    ACCEPTED = 1
    """Of the shown completions."""
    SURVIVED = 2
    """Of the accepted completions."""


def variance_over_groups(parts: Values, wholes: Values) -> Values:
    """Return the variance of each track's share, by the residuals of its groups of users.

    That of a ratio of sums over independent groups; see Cochran, Sampling Techniques, section 6.3.
    """
    total, groups = wholes.sum(-1), wholes.shape[-1]
    residuals = parts - (parts.sum(-1) / total)[..., None] * wholes
    found: Values = groups / (groups - 1) * (residuals**2).sum(-1) / total**2
    return found


def variance_of_independent(parts: Values, wholes: Values) -> Values:
    """Return the variance as if each completion were a draw of its own, which it is not: for comparison."""
    total = wholes.sum(-1)
    share = parts.sum(-1) / total
    found: Values = share * (1 - share) / total
    return found


def log_likelihood_ratio(parts: Values, wholes: Values, variance: Variance = variance_over_groups) -> Values:
    """Return the evidence that the canary's share is lower by `WORSE`, against "equal"; NaN below the limits.

    The last two dimensions are the track (stable, canary) and the group of users. The estimate of the difference is
    normal with the given variance, so this is the ratio of two normal densities.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share = parts.sum(-1) / wholes.sum(-1)
        stable, canary = share[..., 0], share[..., 1]
        ratio = WORSE * stable * ((1 - WORSE / 2) * stable - canary) / variance(parts, wholes).sum(-1)
        of_canary = wholes[..., 1, :]
        total = of_canary.sum(-1)
        is_enough = (total >= MIN_CASES) & (total**2 / (of_canary**2).sum(-1) >= MIN_GROUPS)
    return np.where(is_enough, ratio, np.nan)


_USERS = 1000
_ANSWERS_PER_MIN = 1.2
"""To a user who types, on average over the users. Those with text are shown."""
_ACTIVITY_SIGMA = 1.0
"""Of the logarithm of a user's own rate. At 1 the busiest sixth has half of the answers."""
_TYPING_SHARE = 0.5
"""Of the users in each quarter of an hour; the others rest."""
_CHANCES = ((0.83, 0.08), (0.3, 0.12), (0.8, 0.1))
"""Mean and standard deviation of the users' own chances, of a beta distribution, in the order of `Share`."""
_MOOD_SIGMA = 0.5
"""Of a user's log odds, from one quarter to the next."""
_DRIFT = 0.4
"""By how much the log odds of all rise and fall over a day."""
_SERVERS, _MINUTES = 4, 60
_QUARTERS = -(-_MINUTES // _QUARTER)


def rollout(seed: int, losses: Sequence[float] = (0.0, 0.0, 0.0)) -> tuple[Values, Values]:
    """Return the parts and the wholes of the shares, summed since `BEGIN`: minute, share, track, group of users.

    One of the servers is a canary. A user's requests all go to one server, drawn by the user's name. `losses` are by
    what part each share of the canary is lower, in the order of `Share`.
    """
    rng, minutes = np.random.default_rng(seed), _MINUTES - BEGIN
    is_canary = rng.integers(_SERVERS, size=_USERS) == 0
    place = is_canary * NUM_USER_GROUPS + rng.integers(NUM_USER_GROUPS, size=_USERS)
    minute, user = _answers(rng, minutes)
    mood = rng.normal(0, _MOOD_SIGMA, (_QUARTERS, _USERS))
    log_odds = mood[minute // _QUARTER, user] + _DRIFT * np.sin(2 * np.pi * (minute / _DAY + rng.random()))
    chosen = np.ones(len(user), dtype=bool)
    counts = []
    for share in (None, *Share):
        if share is not None:
            mean, deviation = _CHANCES[share]
            size = mean * (1 - mean) / deviation**2 - 1
            own = rng.beta(mean * size, (1 - mean) * size, _USERS).clip(1e-6, 1 - 1e-6)
            chance = 1 / (1 + ((1 - own) / own)[user] * np.exp(-log_odds))
            chosen = chosen & (rng.random(len(user)) < chance * (1 - losses[share] * is_canary[user]))
        cell = (minute * 2 * NUM_USER_GROUPS + place[user])[chosen]
        found = np.bincount(cell, minlength=minutes * 2 * NUM_USER_GROUPS).astype(float)
        counts.append(found.reshape(minutes, 2, NUM_USER_GROUPS).cumsum(0))
    return np.stack(counts[1:], axis=1), np.stack(counts[:-1], axis=1)


def _answers(rng: np.random.Generator, minutes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the minute and the user of each answer."""
    own = rng.lognormal(-(_ACTIVITY_SIGMA**2) / 2, _ACTIVITY_SIGMA, _USERS)
    is_typing = rng.random((_QUARTERS, _USERS)) < _TYPING_SHARE
    numbers = rng.poisson(_QUARTER * _ANSWERS_PER_MIN * own * is_typing)
    quarter, user = np.divmod(np.repeat(np.arange(numbers.size), numbers.ravel()), _USERS)
    minute = quarter * _QUARTER + rng.integers(_QUARTER, size=len(user))
    return minute[minute < minutes], user[minute < minutes]


def taken_back_at(parts: Values, wholes: Values, variance: Variance = variance_over_groups) -> int | None:
    """Look at the counts each minute, as the analysis does; return the place of the first that goes back, or None."""
    ratios = np.nan_to_num(log_likelihood_ratio(parts, wholes, variance), nan=-np.inf)
    found = np.flatnonzero(ratios.max(axis=1) >= LIMIT)
    return int(found[0]) if found.size else None
