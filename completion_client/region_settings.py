"""The settings of clients with several endpoints."""

import math
from dataclasses import dataclass, fields

from completion_client.endpoint import EndpointError

_LEAST: dict[str, float] = {
    "users_per_connection": 1,
    "overloads": 1,
    "check_interval_s": 0.01,
    "recheck_s": 0.01,
    "window_s": 0.1,
}
_MOST: dict[str, float] = {"silence_share": 1.0}


@dataclass(frozen=True, slots=True)
class RegionSettings:
    """How endpoints are measured, left and returned to. Times in seconds unless the name says milliseconds.

    Raises EndpointError if a value is out of its range.
    """

    tier_margin_ms: float = 10.0
    """Endpoints whose round trip is at most this much longer than the shortest of their tier are one region. A round
    trip that changes by less is taken for the same."""
    tier_margin_share: float = 0.25
    """The same as a share of the round trip. The larger of the two margins counts."""
    change_after_s: float = 10.0
    """How long a changed round trip must last before users move because of it."""
    window_s: float = 30.0
    """A round trip is the shortest one of this time."""
    race_s: float = 2.0
    """How long the first request waits at most until one endpoint has answered a health check."""
    check_interval_s: float = 15.0
    """Time between two health checks of an endpoint, drawn from half to one and a half of this. An answered request
    counts as a check."""
    check_timeout_s: float = 2.0
    """An endpoint that does not connect or answer a health check within this time has failed."""
    recheck_s: float = 1.0
    """Time until the first check of a failed endpoint. It doubles up to `check_interval_s`, with the same jitter."""
    return_spread_s: float = 30.0
    """Users return to an endpoint that has failed at times spread evenly over this time from its first good answer."""
    move_spread_s: float = 10.0
    """A session that lost its stream and has nothing to send opens another elsewhere at a drawn time within this. Its
    next request opens one at once; so users who type find a server that is not busy with the streams of all others."""
    pass_over_min_s: float = 1.0
    """How long one user passes over an endpoint after a first refusal, unless the server asks for longer. Each further
    one doubles it."""
    pass_over_max_s: float = 30.0
    """The longest time, also if the server asks for longer."""
    overloads: int = 3
    """Requests shed as OVERLOAD, without an answer between them, after which an endpoint counts as refusing."""
    silence_share: float = 0.4
    """The share of a request's remaining time after which a server that sends nothing is given up."""
    silence_min_s: float = 0.1
    """Bounds of that time. A server gets a health check at half of it and is given up only if that is not answered."""
    silence_max_s: float = 1.0
    """Also the time if the request has no time limit."""
    users_per_connection: int = 64
    """Servers limit the streams of a connection (128)."""
    certificate_interval_s: float = 10.0
    """How often the TLS files are looked at for a change."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for each in fields(self):
            value = getattr(self, each.name)
            least, most = _LEAST.get(each.name, 0.0), _MOST.get(each.name, math.inf)
            if not (isinstance(value, int | float) and least <= value <= most and value < math.inf):
                limit = f"from {least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
                raise EndpointError(each.name, f"must be {limit}, got {value!r}")
        if self.silence_min_s > self.silence_max_s:
            limit = f"must be at most silence_max_s = {self.silence_max_s:g}"
            raise EndpointError("silence_min_s", f"{limit}, got {self.silence_min_s:g}")

    def silence_s(self, left_s: float | None) -> float:
        """Return how long a server may send nothing to a request that has `left_s` left; None is no time limit."""
        share_s = self.silence_max_s if left_s is None else left_s * self.silence_share
        return min(self.silence_max_s, max(self.silence_min_s, share_s))

    def margin_s(self, round_trip_s: float) -> float:
        """Return by how much a round trip may be longer or shorter and count as the same."""
        return max(self.tier_margin_ms / 1000, self.tier_margin_share * round_trip_s)
