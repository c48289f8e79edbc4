"""Simulated editors: draws the requests that typing users cause. Pure and seeded. Knows nothing of servers."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from loadtest.traffic.typist import TypingModel

_SETTLE_S = 30.0
"""Time typed before time 0, so that time 0 falls anywhere in bursts and pauses."""


@dataclass(frozen=True, slots=True)
class EditorModel:
    """A typist and an editor. The values are assumptions.

    A user types in spells. The time away between two spells is exponential, so that the rest of the time away of a user
    who is away at time 0 has the same distribution.
    """

    # Of requests after each key about four in five are said to be superseded, so one key in five ends a burst.
    typing: TypingModel = field(default_factory=lambda: TypingModel(keys_per_burst=5.0))
    keys_per_spell: float = 50.0
    """Mean number of keys in a spell of typing, which takes about half a minute."""
    away_s: float = 0.0
    """Mean time away after a spell; with 0 the user never stops."""
    debounce_s: float = 0.050
    """Time without a key after which the editor sends a request."""
    pause_s: float = 0.500
    """A user whose next key comes this late is taken to wait for the answer."""

    def __post_init__(self) -> None:
        if not (self.keys_per_spell >= 1 and self.away_s >= 0):
            raise ValueError(f"keys_per_spell must be at least 1 and away_s at least 0, got {self}")

    @property
    def requests_per_s(self) -> float:
        """Requests per second of one user in the long run."""
        return self._asked_share / (self.typing.typing_gap_s + self.away_s / self.keys_per_spell)

    def resting(self, requests_per_s: float) -> "EditorModel":
        """Return a model whose users are away so long that they send `requests_per_s` in the long run.

        Raises ValueError if a user who is never away sends fewer.
        """
        away_s = (self._asked_share / requests_per_s - self.typing.typing_gap_s) * self.keys_per_spell
        if away_s < 0:
            most = self._asked_share / self.typing.typing_gap_s
            raise ValueError(f"a user who never rests asks {most:.2f} times a second, not {requests_per_s:.2f}")
        return replace(self, away_s=away_s)

    @property
    def away_share(self) -> float:
        """The share of the time that a user is away."""
        return self.away_s / (self.away_s + self.keys_per_spell * self.typing.typing_gap_s)

    def as_json(self) -> dict[str, Any]:
        """Return the parameters for JSON."""
        typing = self.typing
        gaps = {"key_gap": typing.key_gap, "short_pause": typing.word_pause, "long_pause": typing.micro_pause}
        return {
            **{name: {"median_s": gap.median_s, "sigma": gap.sigma} for name, gap in gaps.items()},
            "keys_per_burst": typing.keys_per_burst,
            "long_pause_share": typing.micro_pause_share,
            "keys_per_spell": self.keys_per_spell,
            "away_s": self.away_s,
            "debounce_s": self.debounce_s,
            "pause_s": self.pause_s,
        }

    @property
    def _asked_share(self) -> float:
        """The share of keys after which the editor sends a request."""
        return self.typing.share_above(self.debounce_s)


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A request that an editor sends after a key. Times are in seconds."""

    user: int
    at: float
    """Arrival time: the debounce after the key."""
    next_key_at: float
    is_pause: bool
    """Whether the user stopped typing at this key."""


def requests_of(user: int, model: EditorModel, seconds: float, seed: int) -> Iterator[SimulatedRequest]:
    """Yield a user's requests from 0 to `seconds` in order; the same for the same user and seed."""
    chance = random.Random(f"{seed} {user}")
    for key_at, next_key_at in _keys(model, seconds, chance):
        gap_s = next_key_at - key_at
        at = key_at + model.debounce_s
        if gap_s > model.debounce_s and 0 <= at < seconds:
            yield SimulatedRequest(user, at, next_key_at, gap_s >= model.pause_s)


def requests_of_all(num_users: int, model: EditorModel, seconds: float, seed: int) -> list[SimulatedRequest]:
    """Return the requests of all users in order."""
    requests = (request for user in range(num_users) for request in requests_of(user, model, seconds, seed))
    return sorted(requests, key=lambda request: request.at)


def _keys(model: EditorModel, seconds: float, chance: random.Random) -> Iterator[tuple[float, float]]:
    """Yield the times of each key up to `seconds` and of the key after it."""
    at = -_SETTLE_S
    if chance.random() < model.away_share:
        at = chance.expovariate(1 / model.away_s)  # the rest of an exponential time is exponential
    while at < seconds:
        next_at = at + model.typing.draw_gap_s(chance)
        # Whether the user is away at 0 was drawn above.
        if at >= 0 and model.away_s and chance.random() * model.keys_per_spell < 1:
            next_at += chance.expovariate(1 / model.away_s)
        yield at, next_at
        at = next_at
