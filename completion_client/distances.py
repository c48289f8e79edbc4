"""How far endpoints are, and which of them count as one region. Pure: the caller gives the time.

The round trip of an endpoint is the shortest of its recent samples: queues and busy machines only lengthen a sample.
Tiers are made from settled round trips: the shortest of the first samples, and later one that has been outside of the
margin around the settled one, on one side, for `change_after_s`. So noise moves no user.
"""

import math
from operator import itemgetter

from completion_client.endpoint import Endpoint
from completion_client.region_settings import RegionSettings

_FIRST_SAMPLES = 3
"""As many samples settle at once."""
_MS_PER_S = 1000


class _Distance:
    """The round trip of one endpoint: the shortest sample of the last half to whole window."""

    def __init__(self, window_s: float) -> None:
        self.num_samples = 0
        self.measured_s: float | None = None
        self.settled_s = math.inf
        self.left_margin: tuple[bool, float] | None = None
        """Whether the measured round trip is longer than the margin allows or shorter, and since when."""
        self._half_s = window_s / 2
        self._half = 0
        self._before = self._now = math.inf

    def add(self, sample_s: float, at_s: float) -> float:
        half = int(at_s // self._half_s)
        if half != self._half:
            self._before = self._now if half == self._half + 1 else math.inf
            self._now, self._half = math.inf, half
        self._now = min(self._now, sample_s)
        self.num_samples += 1
        self.measured_s = min(self._now, self._before)
        return self.measured_s


class Distances:
    """The round trips of endpoints, and the tiers made from them."""

    def __init__(self, endpoints: tuple[Endpoint, ...], settings: RegionSettings) -> None:
        """Begin without samples: all endpoints are one tier."""
        self.endpoints = endpoints
        self._settings = settings
        self._distances = {each: _Distance(settings.window_s) for each in endpoints}
        self.tiers: tuple[tuple[Endpoint, ...], ...] = (endpoints,)
        """Endpoints by distance, the nearest tier first. Those without a sample are the last tier."""
        self.version = 0
        """Counts the changes of `tiers`."""

    def measured(self, endpoint: Endpoint, round_trip_s: float, now_s: float) -> bool:
        """Add a sample; return whether the tiers have changed."""
        distance = self._distances[endpoint]
        measured_s = distance.add(max(0.0, round_trip_s), now_s)
        if not self._settles(distance, measured_s, now_s):
            return False
        distance.settled_s, distance.left_margin = measured_s, None
        before, self.tiers = self.tiers, self._make_tiers()
        self.version += self.tiers != before
        return self.tiers != before

    def round_trip_s(self, endpoint: Endpoint) -> float | None:
        """Return the round trip as measured of late; None without a sample."""
        return self._distances[endpoint].measured_s

    def tier(self, endpoint: Endpoint) -> int:
        """Return the number of an endpoint's tier; 0 is the nearest."""
        return next(number for number, tier in enumerate(self.tiers) if endpoint in tier)

    def _settles(self, distance: _Distance, measured_s: float, now_s: float) -> bool:
        settings, settled_s = self._settings, distance.settled_s
        if distance.num_samples <= _FIRST_SAMPLES:
            return measured_s < settled_s
        if abs(measured_s - settled_s) <= _larger(settings.change_margin_ms, settings.change_margin_share, settled_s):
            distance.left_margin = None
            return False
        is_longer = measured_s > settled_s
        if distance.left_margin is None or distance.left_margin[0] != is_longer:
            distance.left_margin = is_longer, now_s
        return now_s - distance.left_margin[1] >= settings.change_after_s

    def _make_tiers(self) -> tuple[tuple[Endpoint, ...], ...]:
        """Return the tiers, each in the given order, which does not tell which of its endpoints is the nearest."""
        settings = self._settings
        settled_s = {each: distance.settled_s for each, distance in self._distances.items()}
        tiers: list[list[Endpoint]] = []
        limit_s = -1.0
        for endpoint, round_trip_s in sorted(settled_s.items(), key=itemgetter(1)):
            if round_trip_s > limit_s:
                tiers.append([])
                limit_s = round_trip_s + _larger(settings.tier_margin_ms, settings.tier_margin_share, round_trip_s)
            tiers[-1].append(endpoint)
        return tuple(tuple(sorted(tier, key=self.endpoints.index)) for tier in tiers)


def _larger(margin_ms: float, share: float, round_trip_s: float) -> float:
    return max(margin_ms / _MS_PER_S, share * round_trip_s)
