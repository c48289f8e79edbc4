"""How people type, and what their editors ask: pure and seeded. Knows nothing of servers.

A renewal process: the gaps between keys are independent draws. Most are the gaps within a burst; after a key a burst
ends with a fixed probability, and a pause follows, short or long. A user may also be away between spells of typing.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

_SETTLE_S = 30.0
"""Typed before time 0, so that it lies anywhere in bursts and pauses, as often as they are met in life."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal distribution of seconds, by its median and the standard deviation of the logarithm."""

    median_s: float
    sigma: float

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
class Typing:
    """A typist and an editor. Where nothing else is said, the figure is an assumption."""

    # Dhakal et al., "Observations on Typing from 136 Million Keystrokes" (CHI 2018): skewed gaps with a mean of about
    # 240 ms, hesitations included. Assumed for people who type all day: less, within a burst.
    key_gap: LogNormal = LogNormal(0.170, 0.45)
    # Of requests after each key about four in five are said to be superseded, so one key in five ends a burst: a word,
    # a name or an operator. The number of its keys is geometric.
    keys_per_burst: float = 5.0
    # Most pauses are for the next word, some are for reading or thinking and have a long tail.
    short_pause: LogNormal = LogNormal(1.2, 0.6)
    long_pause: LogNormal = LogNormal(6.0, 0.8)
    long_pause_share: float = 0.12
    # A spell of typing is half a minute or so; then the user is away for a time that is exponential.
    keys_per_spell: float = 50.0
    away_s: float = 0.0
    """The mean; 0 types on for ever."""
    # So long editors wait for the next key before they ask.
    debounce_s: float = 0.050
    pause_s: float = 0.500
    """From this gap on somebody is taken to be waiting for an answer."""

    def __post_init__(self) -> None:
        """Refuse what nobody can type."""
        if not (self.keys_per_burst >= 1 and self.keys_per_spell >= 1 and self.away_s >= 0):
            msg = f"keys_per_burst and keys_per_spell must be at least 1 and away_s at least 0, got {self}"
            raise ValueError(msg)

    @property
    def requests_per_s(self) -> float:
        """Requests a second of one user in the long run."""
        return self._asked_share / (self._typing_gap_s + self.away_s / self.keys_per_spell)

    def resting(self, requests_per_s: float) -> "Typing":
        """Return a typist who is away so much that it comes to these requests a second, in the long run.

        Raises:
            ValueError: nobody types that much.

        """
        away_s = (self._asked_share / requests_per_s - self._typing_gap_s) * self.keys_per_spell
        if away_s < 0:
            most = self._asked_share / self._typing_gap_s
            msg = f"a user who never rests asks {most:.2f} times a second, not {requests_per_s:.2f}"
            raise ValueError(msg)
        return replace(self, away_s=away_s)

    @property
    def away_share(self) -> float:
        """How much of the time a user is away."""
        return self.away_s / (self.away_s + self.keys_per_spell * self._typing_gap_s)

    def gap_s(self, chance: random.Random) -> float:
        """Return the time from a key to the next, for who is not away."""
        if chance.random() * self.keys_per_burst >= 1:
            return self.key_gap.draw(chance)
        is_long = chance.random() < self.long_pause_share
        return (self.long_pause if is_long else self.short_pause).draw(chance)

    @property
    def _asked_share(self) -> float:
        """How many of the keys an editor asks after."""
        return sum(share * gap.share_above(self.debounce_s) for share, gap in self._gaps())

    @property
    def _typing_gap_s(self) -> float:
        return sum(share * gap.mean_s for share, gap in self._gaps())

    def _gaps(self) -> list[tuple[float, LogNormal]]:
        """Return the kinds of gaps and how often they are drawn."""
        pause = 1 / self.keys_per_burst
        return [
            (1 - pause, self.key_gap),
            (pause * (1 - self.long_pause_share), self.short_pause),
            (pause * self.long_pause_share, self.long_pause),
        ]


@dataclass(frozen=True, slots=True)
class TypedRequest:
    """A key after which an editor asked. Times are in seconds."""

    user: int
    at: float
    """When the request arrives: the debounce after the key."""
    next_key_at: float
    is_pause: bool
    """Whether the user stopped typing at this key."""


def requests_of(user: int, typing: Typing, seconds: float, seed: int) -> Iterator[TypedRequest]:
    """Yield what a user asks from 0 to `seconds`, in time; for one user and seed always the same."""
    chance = random.Random(f"{seed} {user}")
    for key_at, next_key_at in _keys(typing, seconds, chance):
        gap_s = next_key_at - key_at
        at = key_at + typing.debounce_s
        if gap_s > typing.debounce_s and 0 <= at < seconds:
            yield TypedRequest(user, at, next_key_at, gap_s >= typing.pause_s)


def requests_of_all(num_users: int, typing: Typing, seconds: float, seed: int) -> list[TypedRequest]:
    """Return what all users ask, in time."""
    asked = (request for user in range(num_users) for request in requests_of(user, typing, seconds, seed))
    return sorted(asked, key=lambda request: request.at)


def _keys(typing: Typing, seconds: float, chance: random.Random) -> Iterator[tuple[float, float]]:
    """Yield each key up to `seconds` and the one after it, by their times."""
    at = -_SETTLE_S
    if chance.random() < typing.away_share:
        at = chance.expovariate(1 / typing.away_s)  # the rest of an exponential time is one, too
    while at < seconds:
        next_at = at + typing.gap_s(chance)
        # Who is away at 0 was settled above.
        if at >= 0 and typing.away_s and chance.random() * typing.keys_per_spell < 1:
            next_at += chance.expovariate(1 / typing.away_s)
        yield at, next_at
        at = next_at
