"""How far endpoints are, and which of them count as one region. Pure: the caller gives the time.

The round trip of an endpoint is the shortest of its recent samples: queues and busy machines only lengthen a sample.
Tiers are made from settled round trips, which follow the measured ones with hysteresis:

- the first samples settle at once;
- later, a round trip that leaves the margin around the settled one on one side, and stays there for `change_after_s`,
  becomes the settled one. Less or shorter changes change nothing, so noise moves no user.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from completion_client.endpoint import Endpoint
from completion_client.regions.settings import RegionSettings

_Tiers = tuple[tuple[Endpoint, ...], ...]

_FIRST_SAMPLES = 3
"""As many samples settle at once."""
_MS_PER_S = 1000


class WindowedMinimum:
    """The shortest sample of the last half to whole window, in constant memory."""

    __slots__ = ("_before", "_half", "_half_s", "_now")

    def __init__(self, window_s: float) -> None:
        """Begin without samples."""
        self._half_s = window_s / 2
        self._half = 0
        """The number of the present half window, on the caller's clock."""
        self._before = self._now = math.inf

    def add(self, sample: float, at_s: float) -> float:
        """Add a sample and return the minimum."""
        half = int(at_s // self._half_s)
        if half != self._half:
            self._before = self._now if half == self._half + 1 else math.inf
            self._now, self._half = math.inf, half
        self._now = min(self._now, sample)
        return min(self._now, self._before)


@dataclass(slots=True)
class _Distance:
    samples: WindowedMinimum
    num_samples: int = 0
    measured_s: float | None = None
    settled_s: float | None = None
    left_margin_at_s: float | None = None
    """Since when the measured round trip has been on one side outside of the margin."""
    is_longer: bool = False


@dataclass(slots=True)
class Distances:
    """The round trips of endpoints, and the tiers made from them."""

    endpoints: tuple[Endpoint, ...]
    settings: RegionSettings
    version: int = 0
    """Counts the changes of `tiers`."""
    tiers: _Tiers = ()
    """Endpoints by distance, the nearest tier first. Those without a sample are the last tier."""
    _distances: dict[Endpoint, _Distance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin without samples: all endpoints are one tier."""
        self._distances = {each: _Distance(WindowedMinimum(self.settings.window_s)) for each in self.endpoints}
        self.tiers = (self.endpoints,)

    def measured(self, endpoint: Endpoint, round_trip_s: float, now_s: float) -> bool:
        """Add a sample; return whether the tiers have changed."""
        distance = self._distances[endpoint]
        distance.num_samples += 1
        distance.measured_s = distance.samples.add(max(0.0, round_trip_s), now_s)
        if not self._settles(distance, distance.measured_s, now_s):
            return False
        distance.settled_s, distance.left_margin_at_s = distance.measured_s, None
        tiers = self._make_tiers()
        if tiers == self.tiers:
            return False
        self.tiers = tiers
        self.version += 1
        return True

    def round_trip_s(self, endpoint: Endpoint) -> float | None:
        """Return the round trip as measured of late; None without a sample."""
        return self._distances[endpoint].measured_s

    def tier(self, endpoint: Endpoint) -> int:
        """Return the number of an endpoint's tier; 0 is the nearest."""
        return next(number for number, tier in enumerate(self.tiers) if endpoint in tier)

    def _settles(self, distance: _Distance, measured_s: float, now_s: float) -> bool:
        settings, settled_s = self.settings, distance.settled_s
        if settled_s is None or distance.num_samples <= _FIRST_SAMPLES:
            return settled_s is None or measured_s < settled_s
        margin_s = _larger(settings.change_margin_ms, settings.change_margin_share, settled_s)
        if abs(measured_s - settled_s) <= margin_s:
            distance.left_margin_at_s = None
            return False
        is_longer = measured_s > settled_s
        if distance.left_margin_at_s is None or is_longer != distance.is_longer:
            distance.left_margin_at_s, distance.is_longer = now_s, is_longer
        return now_s - distance.left_margin_at_s >= settings.change_after_s

    def _make_tiers(self) -> _Tiers:
        settled = {each: distance.settled_s for each, distance in self._distances.items()}
        known = sorted(((value, each) for each, value in settled.items() if value is not None), key=itemgetter(0))
        tiers: list[list[Endpoint]] = []
        limit_s = -1.0
        for round_trip_s, endpoint in known:
            if round_trip_s > limit_s:
                tiers.append([])
                limit_s = round_trip_s + _larger(
                    self.settings.tier_margin_ms, self.settings.tier_margin_share, round_trip_s
                )
            tiers[-1].append(endpoint)
        unknown = [each for each in self.endpoints if settled[each] is None]
        return tuple(tuple(self._in_given_order(tier)) for tier in (*tiers, unknown) if tier)

    def _in_given_order(self, tier: Iterable[Endpoint]) -> list[Endpoint]:
        """Return a tier without a trace of which of its endpoints was measured as the nearest."""
        return sorted(tier, key=self.endpoints.index)


def _larger(margin_ms: float, share: float, round_trip_s: float) -> float:
    return max(margin_ms / _MS_PER_S, share * round_trip_s)
