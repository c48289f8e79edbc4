"""How a person types: when the keys come. Knows nothing of what is typed or of who is asked.

A renewal process: the gaps between keys are independent draws. Most are the gaps within a burst; after a key a burst
ends with a fixed probability, and a pause follows: for the next word, to think (a micro pause), or away from the
keyboard. All are log-normal, and time 0 lies anywhere in them, as often as it would be met in life.

The server's own simulation has a typist of its own (`loadtest.simulation`, which this package may not know):
bursts of 5 keys instead of 10, as there most requests are to be superseded, and exponential times away, which its
documented tables rest on; gaps and pauses are the same.
"""

import itertools
import math
import random
from dataclasses import dataclass, fields


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

    def draw_rest(self, chance: random.Random) -> float:
        """Return what is left of one in which a moment lies: long ones are met more often, at any place in them."""
        # Weighted by its length, a log-normal time is log-normal, with its logarithm's mean moved by sigma squared.
        length_s = chance.lognormvariate(math.log(self.median_s) + self.sigma**2, self.sigma)
        return chance.random() * length_s


@dataclass(frozen=True, slots=True)
class TypingModel:
    """A typist. Where a source is known the comment names it; the rest are assumptions.

    The defaults come to 2.5 keys a second, pauses included; one in ten is followed by half a second or more.
    """

    # Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes" (CHI 2018), find
    # skewed gaps with a mean of about 240 ms over 168,000 volunteers who copied sentences, hesitations included. Within
    # a burst, and for people who type all day, it is assumed to be less: a median of 170 ms and a mean of 188.
    key_gap: LogNormal = LogNormal(0.17, 0.45)
    # Assumed: a burst is a word or two, a name or an operator; the number of its keys is geometric.
    keys_per_burst: float = 10.0
    # Shrestha, Leinonen, Zavgorodniaia, Hellas and Edwards, "Pausing While Programming" (ICSE-SEET 2022), tell micro
    # pauses (2 to 15 s, thought about the code at hand) from short (15 to 180 s, planning) and mid ones (3 to 10 min,
    # help sought elsewhere). What is below 2 s is for the next word. How often each comes is assumed here.
    word_pause: LogNormal = LogNormal(1.2, 0.6)
    micro_pause: LogNormal = LogNormal(6.0, 0.8)
    """Two thirds lie between 2.7 and 13 s."""
    micro_pause_share: float = 0.12
    """Of the pauses."""
    away: LogNormal = LogNormal(90.0, 0.9)
    """The short and mid ones: 95% lie between 15 s and 9 min. The longest are sessions that never type in a run."""
    away_share: float = 0.0
    """Of the time, not of the pauses; 0 is somebody who types on for ever."""

    def __post_init__(self) -> None:
        """Refuse what nobody can type."""
        if self.keys_per_burst < 1 or not 0 <= self.micro_pause_share <= 1:
            msg = f"keys_per_burst must be at least 1 and micro_pause_share 0 to 1, got {self}"
            raise ValueError(msg)
        if not 0 <= self.away_share < 1:
            msg = f"away_share must be at least 0 and below 1, got {self.away_share}"
            raise ValueError(msg)

    @property
    def keys_per_s(self) -> float:
        """Keys a second in the long run."""
        return 1 / sum(share * gap.mean_s for share, gap in self._gaps())

    @property
    def keys_per_spell(self) -> float:
        """Keys from one time away to the next; infinite for who is never away."""
        away, _gap = self._gaps()[-1]
        return 1 / away if away else math.inf

    def requests_per_s(self, debounce_s: float) -> float:
        """Return the requests a second in the long run of an editor that asks when no key came for `debounce_s`."""
        return self.keys_per_s * sum(share * gap.share_above(debounce_s) for share, gap in self._gaps())

    def key_times_s(self, duration_s: float, chance: random.Random) -> list[float]:
        """Return when the keys from 0 to `duration_s` come, and the first one after that."""
        gaps = self._gaps()
        limits = list(itertools.accumulate(share for share, _gap in gaps))
        draws = [(math.log(gap.median_s), gap.sigma) for _share, gap in gaps]
        at = self._first_s(gaps, chance)
        times = [at]
        draw, last = chance.random, len(gaps) - 1
        while at < duration_s:
            kind, place = 0, draw()
            while kind < last and place >= limits[kind]:
                kind += 1
            at += chance.lognormvariate(*draws[kind])
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

    @staticmethod
    def _first_s(gaps: list[tuple[float, LogNormal]], chance: random.Random) -> float:
        """Return when the first key comes: a kind of gap is met as often as it takes time."""
        weights = [share * gap.mean_s for share, gap in gaps]
        [gap] = chance.choices([gap for _share, gap in gaps], weights)
        return gap.draw_rest(chance)

    def _gaps(self) -> list[tuple[float, LogNormal]]:
        """Return the kinds of gaps and how often they are drawn; the times away come last."""
        pause = 1 / self.keys_per_burst
        typing = [
            (1 - pause, self.key_gap),
            (pause * (1 - self.micro_pause_share), self.word_pause),
            (pause * self.micro_pause_share, self.micro_pause),
        ]
        typing_s = self.away_share * sum(share * gap.mean_s for share, gap in typing)
        away = typing_s / (typing_s + (1 - self.away_share) * self.away.mean_s)
        return [*((share * (1 - away), gap) for share, gap in typing), (away, self.away)]
