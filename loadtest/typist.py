"""How a person types: when the keys come. Knows nothing of what is typed or of who is asked.

A renewal process: the gaps between keys are independent draws. Most are the gaps within a burst; after a key a burst
ends with a fixed probability, and a pause follows, short or long. All three are log-normal.
"""

import math
import random
from dataclasses import dataclass, fields

_SETTLE_S = 120.0
"""Typed before a trace begins, so that it begins anywhere in bursts and pauses, as often as they are met in life."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal distribution of seconds, by its median and the standard deviation of the logarithm."""

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        """Refuse what is no distribution."""
        if self.median_s <= 0 or self.sigma <= 0:
            msg = f"median and sigma must be above 0, got {self.median_s} and {self.sigma}"
            raise ValueError(msg)

    @property
    def mean_s(self) -> float:
        """Its mean."""
        return self.median_s * math.exp(self.sigma**2 / 2)

    def share_above(self, seconds: float) -> float:
        """Return how much of it lies above a time."""
        if seconds <= 0:
            return 1.0
        return 0.5 * math.erfc(math.log(seconds / self.median_s) / (self.sigma * math.sqrt(2)))

    def draw(self, chance: random.Random) -> float:
        """Return one of it."""
        return chance.lognormvariate(math.log(self.median_s), self.sigma)


@dataclass(frozen=True, slots=True)
class TypingModel:
    """A typist. The defaults are assumptions; where something is known, the comment says what.

    They come to 2.5 keys a second, pauses included; one in ten is followed by half a second or more.
    """

    # Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes" (CHI 2018), find
    # skewed gaps with a mean of about 240 ms over 168,000 volunteers who copied sentences, hesitations included. Within
    # a burst, and for people who type all day, it is assumed to be less: a median of 170 ms and a mean of 188.
    key_gap: LogNormal = LogNormal(0.17, 0.45)
    # Assumed: a burst is a word or two, a name or an operator; the number of its keys is geometric.
    keys_per_burst: float = 10.0
    # Assumed: most pauses are for the next word, some are for reading or thinking and have a long tail.
    short_pause: LogNormal = LogNormal(1.2, 0.6)
    long_pause: LogNormal = LogNormal(6.0, 0.8)
    long_pause_share: float = 0.12

    def __post_init__(self) -> None:
        """Refuse what nobody can type."""
        if self.keys_per_burst < 1 or not 0 <= self.long_pause_share <= 1:
            msg = f"keys_per_burst must be at least 1 and long_pause_share 0 to 1, got {self}"
            raise ValueError(msg)

    @property
    def keys_per_s(self) -> float:
        """Keys a second in the long run."""
        return 1 / sum(share * gap.mean_s for share, gap in self._gaps())

    def requests_per_s(self, debounce_s: float) -> float:
        """Return the requests a second in the long run of an editor that asks when no key came for `debounce_s`."""
        return self.keys_per_s * sum(share * gap.share_above(debounce_s) for share, gap in self._gaps())

    def gap_s(self, chance: random.Random) -> float:
        """Return the time from a key to the next."""
        if chance.random() * self.keys_per_burst >= 1:
            return self.key_gap.draw(chance)
        is_long = chance.random() < self.long_pause_share
        return (self.long_pause if is_long else self.short_pause).draw(chance)

    def key_times_s(self, duration_s: float, chance: random.Random) -> list[float]:
        """Return when the keys from 0 to `duration_s` come, and the first one after that."""
        at = -_SETTLE_S
        times: list[float] = []
        while at < duration_s:
            at += self.gap_s(chance)
            if at >= 0:
                times.append(at)
        return times

    def parameters(self) -> dict[str, float]:
        """Return the parameters by name, flat, for a report."""
        found: dict[str, float] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, LogNormal):
                found |= {f"{field.name}_median_s": value.median_s, f"{field.name}_sigma": value.sigma}
            else:
                found[field.name] = value
        return found

    def _gaps(self) -> list[tuple[float, LogNormal]]:
        """Return the kinds of gaps and how often they are drawn."""
        pause = 1 / self.keys_per_burst
        return [
            (1 - pause, self.key_gap),
            (pause * (1 - self.long_pause_share), self.short_pause),
            (pause * self.long_pause_share, self.long_pause),
        ]
