"""How far endpoints are, and which of them count as one region. Pure: the caller gives the time.

The round trip of an endpoint is the shortest of its recent samples: queues and busy machines only lengthen a sample.
Tiers are made from settled round trips: the shortest of the first samples, and later one that has been outside of the
margin around the settled one for `change_after_s`. So noise moves no user.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from completion_client.endpoint import Endpoint
from completion_client.region_settings import RegionSettings

_FIRST_SAMPLES = 3
"""As many samples settle at once."""
_MAX_SAMPLES = 64


@dataclass(slots=True)
class _Distance:
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    """The time and the round trip of each."""
    num_samples: int = 0
    measured_s: float | None = None
    settled_s: float = math.inf
    outside_since_s: float = math.inf


class Distances:
    """The round trips of endpoints, and the tiers made from them."""

    def __init__(self, endpoints: tuple[Endpoint, ...], settings: RegionSettings) -> None:
        """Begin without samples: all endpoints are one tier."""
        self._settings = settings
        self._distances = {each: _Distance() for each in endpoints}
        self.tiers: tuple[tuple[Endpoint, ...], ...] = (endpoints,)
        """Endpoints by distance, the nearest tier first; another object after a change. Those without a sample are the
        last tier."""

    def measured(self, endpoint: Endpoint, round_trip_s: float, now_s: float) -> None:
        """Add a sample."""
        distance, first_s = self._distances[endpoint], now_s - self._settings.window_s
        distance.samples.append((now_s, max(0.0, round_trip_s)))
        distance.num_samples += 1
        distance.measured_s = min(each for at_s, each in distance.samples if at_s >= first_s)
        if self._settles(distance, distance.measured_s, now_s):
            distance.settled_s, distance.outside_since_s = distance.measured_s, math.inf
            tiers = self._make_tiers()
            self.tiers = self.tiers if tiers == self.tiers else tiers

    def round_trip_s(self, endpoint: Endpoint) -> float | None:
        """Return the round trip as measured of late; None without a sample."""
        return self._distances[endpoint].measured_s

    def tier(self, endpoint: Endpoint) -> int:
        """Return the number of an endpoint's tier; 0 is the nearest."""
        return next(number for number, tier in enumerate(self.tiers) if endpoint in tier)

    def _settles(self, distance: _Distance, measured_s: float, now_s: float) -> bool:
        if distance.num_samples <= _FIRST_SAMPLES:
            return measured_s < distance.settled_s
        if abs(measured_s - distance.settled_s) <= self._settings.margin_s(distance.settled_s):
            distance.outside_since_s = math.inf
            return False
        distance.outside_since_s = min(distance.outside_since_s, now_s)
        return now_s - distance.outside_since_s >= self._settings.change_after_s

    def _make_tiers(self) -> tuple[tuple[Endpoint, ...], ...]:
        """Return the tiers, each in the given order, which does not tell which of its endpoints is the nearest."""
        settled_s = {each: distance.settled_s for each, distance in self._distances.items()}
        tiers: list[list[Endpoint]] = []
        limit_s = -1.0
        for endpoint in sorted(settled_s, key=settled_s.__getitem__):
            if settled_s[endpoint] > limit_s:
                tiers.append([])
                limit_s = settled_s[endpoint] + self._settings.margin_s(settled_s[endpoint])
            tiers[-1].append(endpoint)
        return tuple(tuple(each for each in settled_s if each in tier) for tier in tiers)
