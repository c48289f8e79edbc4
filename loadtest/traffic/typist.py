"""The typing model: draws the times of a typist's keys. Knows neither the text nor the server.

Key gaps are independent draws (a renewal process). Most gaps lie within a burst. A burst ends after each key with a
fixed probability, and a pause follows: for the next word, to think (a micro pause), or away from the keyboard. All gaps
are log-normal. Time 0 falls anywhere in them, with the probability that the process gives it.

The load tester and the simulation share this model.
"""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal distribution of seconds, by its median and the standard deviation of the logarithm."""

    median_s: float
    sigma: float

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.median_s * math.exp(self.sigma**2 / 2)

    def share_above(self, seconds: float) -> float:
        """Return the probability of a time above `seconds`."""
        if seconds <= 0:
            return 1.0
        return 0.5 * math.erfc(math.log(seconds / self.median_s) / (self.sigma * math.sqrt(2)))

    def mean_within(self, seconds: float) -> float:
        """Return the mean of the smaller of the time and `seconds`."""
        if seconds <= 0:
            return 0.0
        # Weighted by its length, a log-normal time is log-normal, with its logarithm's mean moved by sigma squared.
        share_of_length = 1 - LogNormal(self.median_s * math.exp(self.sigma**2), self.sigma).share_above(seconds)
        return self.mean_s * share_of_length + seconds * self.share_above(seconds)

    def draw(self, chance: random.Random) -> float:
        """Draw a time."""
        return chance.lognormvariate(math.log(self.median_s), self.sigma)

    def draw_rest(self, chance: random.Random) -> float:
        """Draw the rest of the gap in which a random moment falls. Long gaps contain a random moment more often."""
        # Weighted by its length, a log-normal time is log-normal, with its logarithm's mean moved by sigma squared.
        length_s = chance.lognormvariate(math.log(self.median_s) + self.sigma**2, self.sigma)
        return chance.random() * length_s


@dataclass(frozen=True, slots=True)
class TypingModel:
    """The parameters of a typist. A comment names the source of a value; the other values are assumptions.

    The defaults give 2.5 keys per second, pauses included. A gap of half a second or more follows one key in ten.
    """

    # Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes" (CHI 2018), find
    # skewed gaps with a mean of about 240 ms over 168,000 volunteers who copied sentences, hesitations included. Within
    # a burst, and for people who type all day, it is assumed to be less: a median of 170 ms and a mean of 188.
    key_gap: LogNormal = LogNormal(0.17, 0.45)
    # Assumed: a burst is a word or two, a name or an operator. Its number of keys is geometric.
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
    """The short and mid pauses: 95% lie between 15 s and 9 min. Sessions that never type stand for longer ones."""
    away_share: float = 0.0
    """Share of the time, not of the pauses. With 0 the typist is never away."""

    @property
    def keys_per_s(self) -> float:
        """Keys per second in the long run."""
        return 1 / sum(share * gap.mean_s for share, gap in self._gaps())

    def requests_per_s(self, debounce_s: float) -> float:
        """Return the long-run requests per second of an editor that asks when no key came for `debounce_s`."""
        return self.keys_per_s * self.requests_per_key(debounce_s)

    def requests_per_key(self, debounce_s: float) -> float:
        """Return the share of the keys after which no key comes for `debounce_s`."""
        return sum(share * gap.share_above(debounce_s) for share, gap in self._gaps())

    def share_standing(self, debounce_s: float, seconds: float) -> float:
        """Return the share of these requests after which no key comes for `seconds` more."""
        return self.requests_per_key(debounce_s + seconds) / self.requests_per_key(debounce_s)

    def mean_standing_s(self, debounce_s: float, seconds: float) -> float:
        """Return the mean time from a request to its end: to the next key, but `seconds` at most."""
        within = sum(
            share * (gap.mean_within(debounce_s + seconds) - gap.mean_within(debounce_s)) for share, gap in self._gaps()
        )
        return within / self.requests_per_key(debounce_s)

    @property
    def typing_gap_s(self) -> float:
        """The mean gap of a typist who is not away."""
        return sum(share * gap.mean_s for share, gap in self._typing_gaps())

    def share_above(self, seconds: float) -> float:
        """Return the share of gaps above a time, for a typist who is not away."""
        return sum(share * gap.share_above(seconds) for share, gap in self._typing_gaps())

    def draw_gap_s(self, chance: random.Random) -> float:
        """Draw the time from a key to the next one, for a typist who is not away."""
        if chance.random() * self.keys_per_burst >= 1:
            return self.key_gap.draw(chance)
        is_micro = chance.random() < self.micro_pause_share
        return (self.micro_pause if is_micro else self.word_pause).draw(chance)

    def key_times_s(self, duration_s: float, chance: random.Random) -> list[float]:
        """Return the times of the keys from 0 to `duration_s`, and of the first key after that."""
        gaps = self._gaps()
        away_probability, _away = gaps[-1]
        at = self._first_s(gaps, chance)
        times = [at]
        while at < duration_s:
            is_away = away_probability and chance.random() < away_probability
            at += self.away.draw(chance) if is_away else self.draw_gap_s(chance)
            times.append(at)
        return times

    @staticmethod
    def _first_s(gaps: list[tuple[float, LogNormal]], chance: random.Random) -> float:
        """Draw the time of the first key. Time 0 falls into a kind of gap in proportion to the time that it takes."""
        weights = [share * gap.mean_s for share, gap in gaps]
        [gap] = chance.choices([gap for _share, gap in gaps], weights)
        return gap.draw_rest(chance)

    def _typing_gaps(self) -> list[tuple[float, LogNormal]]:
        """Return the kinds of gaps of a typist who is not away, each with its probability."""
        pause = 1 / self.keys_per_burst
        return [
            (1 - pause, self.key_gap),
            (pause * (1 - self.micro_pause_share), self.word_pause),
            (pause * self.micro_pause_share, self.micro_pause),
        ]

    def _gaps(self) -> list[tuple[float, LogNormal]]:
        """Return all kinds of gaps, each with its probability; the times away come last."""
        typing_s = self.away_share * self.typing_gap_s
        away = typing_s / (typing_s + (1 - self.away_share) * self.away.mean_s)
        return [*((share * (1 - away), gap) for share, gap in self._typing_gaps()), (away, self.away)]
