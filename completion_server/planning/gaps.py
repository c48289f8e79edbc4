"""The times between the keys of a typist, and what they mean for a request. Pure.

The load tester draws its traffic from the same distributions (loadtest/traffic/typist.py, docs/loadtest.md); a test
compares the two. Here only their shares and means matter, which have closed forms.
"""

import math
from dataclasses import dataclass

_KEYS_PER_BURST = 10.0
_MICRO_PAUSE_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class Gap:
    """One kind of gap between two keys: a log-normal time in seconds."""

    probability: float
    median_s: float
    sigma: float

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.median_s * math.exp(self.sigma**2 / 2)

    def share_above(self, seconds: float) -> float:
        """Return the probability of a gap above `seconds`."""
        return 1.0 if seconds <= 0 else 1 - _normal(math.log(seconds / self.median_s) / self.sigma)

    def mean_within(self, seconds: float) -> float:
        """Return the mean of the smaller of the gap and `seconds`."""
        if seconds <= 0:
            return 0.0
        z = math.log(seconds / self.median_s) / self.sigma
        return self.mean_s * _normal(z - self.sigma) + seconds * (1 - _normal(z))


@dataclass(frozen=True, slots=True)
class Gaps:
    """All kinds of gaps of a typist; the probabilities come to 1."""

    kinds: tuple[Gap, ...]

    @property
    def keys_per_s(self) -> float:
        """Keys per second in the long run."""
        return 1 / sum(kind.probability * kind.mean_s for kind in self.kinds)

    def share_above(self, seconds: float) -> float:
        """Return the share of the gaps above `seconds`."""
        return sum(kind.probability * kind.share_above(seconds) for kind in self.kinds)

    def share_standing(self, debounce_s: float, seconds: float) -> float:
        """Return the share of the requests after which no key comes for `seconds`.

        A key becomes a request if no other comes for `debounce_s`.
        """
        return self.share_above(debounce_s + seconds) / self.share_above(debounce_s)

    def mean_standing_s(self, debounce_s: float, seconds: float) -> float:
        """Return the mean time from a request to its end: to the next key, but `seconds` at most."""
        within = sum(
            kind.probability * (kind.mean_within(debounce_s + seconds) - kind.mean_within(debounce_s))
            for kind in self.kinds
        )
        return within / self.share_above(debounce_s)


def typist(away_share: float) -> Gaps:
    """Return the gaps of a typist who is away, reading or thinking, for a share of the time, 0 to below 1."""
    pause = 1 / _KEYS_PER_BURST
    typing = (
        Gap(1 - pause, 0.17, 0.45),  # within a burst
        Gap(pause * (1 - _MICRO_PAUSE_SHARE), 1.2, 0.6),  # for the next word
        Gap(pause * _MICRO_PAUSE_SHARE, 6.0, 0.8),  # for a thought
    )
    away = Gap(1.0, 90.0, 0.9)
    typing_s = away_share * sum(kind.probability * kind.mean_s for kind in typing)
    leaves = typing_s / (typing_s + (1 - away_share) * away.mean_s)
    stays = tuple(Gap(kind.probability * (1 - leaves), kind.median_s, kind.sigma) for kind in typing)
    return Gaps((*stays, Gap(leaves, away.median_s, away.sigma)))


def _normal(z: float) -> float:
    """Return the probability of a standard normal value below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))
