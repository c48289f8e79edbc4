"""Rollouts in which one of several servers is a canary, judged by what its users do.

The recording rules of deploy/monitoring compute the same ratio as `log_likelihood_ratio`; a test compares the two.
docs/canary.md explains it. Time is in minutes from the moment on which the canary serves.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Users:
    """The users of a region, and how they differ: from each other, from quarter to quarter, and all over the day."""

    number: int = 1000
    answers_per_min: float = 1.2
    """To a user who types, on average over the users. Those with text are shown."""
    activity_sigma: float = 1.0
    """Of the logarithm of a user's own rate. At 1 the busiest sixth has half of the answers."""
    typing_share: float = 0.5
    """Of the users in each quarter of an hour; the others rest."""
    chances: tuple[tuple[float, float], ...] = ((0.83, 0.08), (0.3, 0.12), (0.8, 0.1))
    """Mean and standard deviation of the users' own chances, of a beta distribution, in the order of `Share`."""
    mood_sigma: float = 0.5
    """Of a user's log odds, from one quarter to the next."""
    drift: float = 0.4
    """By how much the log odds of all rise and fall over a day."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A canary among servers, for some minutes. A user's requests all go to one server, drawn by the user's name."""

    users: Users = Users()
    losses: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """By what part each share of the canary is lower, in the order of `Share`."""
    servers: int = 4
    minutes: int = 60

    def count(self, seed: int) -> tuple[Values, Values]:
        """Return the parts and the wholes of the shares, summed since `BEGIN`: minute, share, track, group of users."""
        rng = np.random.default_rng(seed)
        minutes, number = self.minutes - BEGIN, self.users.number
        is_canary = rng.integers(self.servers, size=number) == 0
        place = is_canary * NUM_USER_GROUPS + rng.integers(NUM_USER_GROUPS, size=number)
        minute, user = self._answers(rng, minutes)
        mood = rng.normal(0, self.users.mood_sigma, (_quarters(minutes), number))
        day = np.sin(2 * np.pi * (minute / _DAY + rng.random()))
        log_odds = mood[minute // _QUARTER, user] + self.users.drift * day
        chosen = np.ones(len(user), dtype=bool)
        counts = []
        for share in (None, *Share):
            if share is not None:
                own = _chances(rng, *self.users.chances[share], number)
                chance = 1 / (1 + ((1 - own) / own)[user] * np.exp(-log_odds))
                chosen = chosen & (rng.random(len(user)) < chance * (1 - self.losses[share] * is_canary[user]))
            cell = (minute * 2 * NUM_USER_GROUPS + place[user])[chosen]
            found = np.bincount(cell, minlength=minutes * 2 * NUM_USER_GROUPS).astype(float)
            counts.append(found.reshape(minutes, 2, NUM_USER_GROUPS).cumsum(0))
        return np.stack(counts[1:], axis=1), np.stack(counts[:-1], axis=1)

    def _answers(self, rng: np.random.Generator, minutes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the minute and the user of each answer."""
        users = self.users
        own = rng.lognormal(-(users.activity_sigma**2) / 2, users.activity_sigma, users.number)
        is_typing = rng.random((_quarters(minutes), users.number)) < users.typing_share
        numbers = rng.poisson(_QUARTER * users.answers_per_min * own * is_typing)
        quarter, user = np.divmod(np.repeat(np.arange(numbers.size), numbers.ravel()), users.number)
        minute = quarter * _QUARTER + rng.integers(_QUARTER, size=len(user))
        return minute[minute < minutes], user[minute < minutes]


def _quarters(minutes: int) -> int:
    return -(-minutes // _QUARTER)


def _chances(rng: np.random.Generator, mean: float, deviation: float, num_users: int) -> Values:
    size = mean * (1 - mean) / deviation**2 - 1
    drawn: Values = rng.beta(mean * size, (1 - mean) * size, num_users)
    return drawn.clip(1e-6, 1 - 1e-6)


def taken_back_at(parts: Values, wholes: Values, variance: Variance = variance_over_groups) -> int | None:
    """Look at the counts each minute, as the analysis does; return the place of the first that goes back, or None."""
    ratios = np.nan_to_num(log_likelihood_ratio(parts, wholes, variance), nan=-np.inf)
    found = np.flatnonzero(ratios.max(axis=1) >= LIMIT)
    return int(found[0]) if found.size else None
