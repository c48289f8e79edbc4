"""Opens channels to several endpoints without an event loop, the nearest first: for commands that ask once."""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import grpc

from completion_client import blocking
from completion_client.endpoint import Endpoint
from completion_client.health import SERVING
from completion_client.regions.availability import Availability
from completion_client.regions.choice import UserChoice
from completion_client.regions.distances import Distances
from completion_client.regions.settings import RegionSettings

_MS_PER_S = 1000
_GRACE_TRIPS = 4
"""How many tier margins the race goes on after the first answer."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An endpoint with an open channel."""

    endpoint: Endpoint
    channel: grpc.Channel
    round_trip_ms: float | None
    """None if it did not answer in time, or if there was no race."""


@contextmanager
def open_in_order(
    endpoints: Sequence[Endpoint], user: str, tenant: str = "", *, settings: RegionSettings | None = None
) -> Iterator[list[Contender]]:
    """Open channels and yield them in the user's order of preference; leaving the context closes them.

    Several endpoints race with health checks. Those that don't answer within `race_s`, or some time after the first,
    come last. A single endpoint is not measured.

    Raises:
        EndpointError: a PEM file of an endpoint can't be read.

    """
    settings = settings or RegionSettings()
    distances = Distances(tuple(endpoints), settings)
    choice = UserChoice(distances, Availability(endpoints, settings.return_spread_s, ""), user, tenant)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(endpoints)))  # left last: closed channels end its calls
        channels = {each: stack.enter_context(blocking.open_channel(each)) for each in endpoints}
        if len(endpoints) > 1:
            for endpoint, round_trip_s in _race(pool, channels, settings):
                distances.measured(endpoint, round_trip_s, 0.0)
        yield [_contender(each, channels[each], distances.round_trip_s(each)) for each in choice.order]


def _contender(endpoint: Endpoint, channel: grpc.Channel, round_trip_s: float | None) -> Contender:
    return Contender(endpoint, channel, None if round_trip_s is None else round_trip_s * _MS_PER_S)


def _race(
    pool: ThreadPoolExecutor, channels: dict[Endpoint, grpc.Channel], settings: RegionSettings
) -> Iterator[tuple[Endpoint, float]]:
    """Yield the endpoints that answer, with their round trips, until the others are clearly farther."""
    began_s = time.monotonic()
    ends_at_s = began_s + settings.race_s
    open_checks: dict[Future[float | None], Endpoint] = {
        pool.submit(_round_trip_s, channel, settings.race_s): endpoint for endpoint, channel in channels.items()
    }
    grace_end_s = math.inf
    while open_checks and (left_s := min(ends_at_s, grace_end_s) - time.monotonic()) > 0:
        done, _ = wait(open_checks, left_s, FIRST_COMPLETED)
        for check in done:
            endpoint, round_trip_s = open_checks.pop(check), check.result()
            if round_trip_s is None:
                continue
            yield endpoint, round_trip_s
            now_s = time.monotonic()
            margin_s = max(
                _GRACE_TRIPS * settings.tier_margin_ms / _MS_PER_S, settings.tier_margin_share * (now_s - began_s)
            )
            grace_end_s = min(grace_end_s, now_s + margin_s)


def _round_trip_s(channel: grpc.Channel, timeout_s: float) -> float | None:
    """Connect, then return the time of a health check; None if the server does not answer, or does not serve."""
    if not blocking.connect(channel, timeout_s):
        return None
    asked_s = time.perf_counter()
    try:
        is_serving = blocking.check_health(channel, timeout_s) == SERVING
    except grpc.RpcError:  # it offers no health checks
        is_serving = blocking.connect(channel, timeout_s)
        asked_s += (time.perf_counter() - asked_s) / 2
    return time.perf_counter() - asked_s if is_serving else None
