"""From seats to requests, from requests to GPUs, from GPUs to dollars for a completion. Pure.

By hand, with the defaults, 12,000 open sessions in three equal regions and none to spare:

    requests/s      12,000 sessions x 0.5 who type x 0.335 requests/s each                      = 2,008
    documents       (80 GB x 0.92 - 3 GB - 15.35 GB of weights) / (1,500 tokens x 0.844 MB)     = 43.7
    tokens          40 new ones of the prompt, 1,460 more for each request whose document is not in the cache,
                    and (K + 1) / (1 + a + ... + a^K) for each generated token
    a server        0.8 x 12,000 tokens/s / about 101 tokens of a request                       = 95 requests/s
    GPUs            ceil(2,008 / 3 / 95) x 3 regions                                            = 24
    shown           16.0% of 2,008 requests/s x 3,600 s x 0.32 mean load                        = 369,000 an hour
    a completion    24 x $3 / 369,000                                                           = $0.000195

tests/unit/loadtest/planning compares each formula with a simulation or the textbook.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.planning.inputs import Inputs, Region
from loadtest.traffic.typist import TypingModel

_TIMES_S = tuple(1e-2 * 10 ** (place / 16) for place in range(128))
"""Times at which a curve is known: 16 in each power of ten, up to eleven days."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests of all sessions at the busiest time. Shares are of the requests, prefetches included."""

    sessions: int
    requests_per_s: float
    shown_share: float  # completions that are shown: in time, with text, and long enough before the next key
    superseded_share: float  # requests that the next key overtakes before their answer is whole
    held_s: float  # how long a request holds its slot on average: until its answer is whole or the next key comes
    generated_tokens: float  # tokens generated for a request on average
    engine_share: float  # requests that reach a GPU; a cache answers the others


def demand_of(inputs: Inputs) -> Demand:
    """Return what the sessions ask for, if each answer starts at once."""
    typist, debounce_s = TypingModel(away_share=inputs.away_share), inputs.debounce_ms / 1000
    typed_per_key = typist.requests_per_key(debounce_s)
    per_key = typed_per_key + inputs.prefetch_share
    requests_per_s = inputs.sessions * inputs.typing_share * typist.keys_per_s * per_key
    if inputs.requests_per_session_hour is not None:
        requests_per_s = inputs.sessions * inputs.requests_per_session_hour / 3600
    shown_share = inputs.shown_share
    if shown_share is None:
        standing = typist.share_standing(debounce_s, inputs.first_text_s + inputs.readable_ms / 1000)
        shown_share = typed_per_key / per_key * standing * inputs.text_share * inputs.in_time
    held_s = typist.mean_standing_s(debounce_s, inputs.service_s)
    until_first_s = typist.mean_standing_s(debounce_s, min(inputs.first_token_ms / 1000, inputs.service_s))
    return Demand(
        sessions=inputs.sessions,
        requests_per_s=requests_per_s,
        shown_share=shown_share,
        superseded_share=1 - typist.share_standing(debounce_s, inputs.service_s),
        held_s=held_s,
        generated_tokens=inputs.tokens_per_s * (held_s - until_first_s),
        engine_share=1 - inputs.cached_share,
    )


def reuse_curve(typist: TypingModel, debounce_s: float) -> tuple[tuple[float, float], ...]:
    """Return how soon users who type ask again, at each of `_TIMES_S`, if an editor asks `debounce_s` after a key.

    First the share of the users who send a request within a time that begins at any moment, then the share of the
    requests that come later than that after the user's last one. Between two requests are one gap above `debounce_s`
    and gaps below it, which count with their mean.
    """
    asked_per_s = typist.requests_per_s(debounce_s)
    least_s = 1 / asked_per_s - typist.mean_standing_s(debounce_s, _TIMES_S[-1])
    found = []
    for seconds in _TIMES_S:
        beyond_s = max(0.0, seconds - least_s)
        asked = asked_per_s * (min(seconds, least_s) + typist.mean_standing_s(debounce_s, beyond_s))
        found.append((asked, typist.share_standing(debounce_s, beyond_s)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """The prefix cache of one server. It keeps the documents that were asked for last (LRU), one for each session."""

    kv_gb: float  # memory for the KV cache, of all the server's GPUs
    documents: float  # documents that fit
    document_tokens: float
    typing_share: float
    """Share of the sessions that ask for anything; by counts of one's own the share that sends so many requests."""
    curve: tuple[tuple[float, float], ...]  # see reuse_curve

    def hit_share(self, sessions: float) -> float:
        """Return the share of the requests of so many sessions whose document is in the cache.

        It is there if fewer other documents than fit were asked for since the user's last request. Users are
        independent, so the number of those others is binomial, which is taken as normal.
        """
        typing = sessions * self.typing_share
        if typing <= self.documents:
            return 1.0
        found, asked_before, later_before = 0.0, 0.0, 1.0
        for asked, later in self.curve:
            mean_share = (asked_before + asked) / 2
            deviation = math.sqrt((typing - 1) * mean_share * max(1 - mean_share, 1e-9))
            fits = 0.5 * math.erfc(((typing - 1) * mean_share - self.documents + 0.5) / (deviation * math.sqrt(2)))
            found += max(0.0, later_before - later) * fits
            asked_before, later_before = asked, later
        return found


def prefix_cache_of(inputs: Inputs) -> PrefixCache:
    """Return the prefix cache of a server. Raises ValueError if it has no room for the weights and a document."""
    engine_gb = inputs.gpus_per_server * (inputs.gpu_memory_gb * inputs.gpu_memory_share - inputs.reserved_gb)
    kv_gb, document_gb = engine_gb - inputs.weights_gb, inputs.kv_bytes_per_token * inputs.document_tokens / 1e9
    if kv_gb < document_gb:
        least = (
            (inputs.weights_gb + document_gb) / inputs.gpus_per_server + inputs.reserved_gb
        ) / inputs.gpu_memory_share
        limit = f"must be at least {least:.1f} for the weights, a document and reserved_gb"
        msg = f"gpu_memory_gb: {limit}, got {inputs.gpu_memory_gb:g}"
        raise ValueError(msg)
    typist, debounce_s = TypingModel(away_share=inputs.away_share), inputs.debounce_ms / 1000
    typing_share = inputs.typing_share
    if inputs.requests_per_session_hour is not None:
        typing_share = inputs.requests_per_session_hour / 3600 / typist.requests_per_s(debounce_s)
    curve = reuse_curve(typist, debounce_s)
    return PrefixCache(kv_gb, kv_gb / document_gb, inputs.document_tokens, typing_share, curve)


@dataclass(frozen=True, slots=True)
class ServerCapacity:
    """What one server answers in time."""

    sessions: float
    requests_per_s: float  # of these sessions, those that a completion cache answers included
    bounds: dict[str, float]
    """Requests a second by each of the limits at that number of sessions; the smallest one is the capacity."""


def capacity_of(demand: Demand, inputs: Inputs, cache: PrefixCache) -> ServerCapacity:
    """Return the most sessions like those of `demand` that a server holds, and their requests.

    More sessions ask for more, and leave each document a shorter time in the cache, so that more is computed.
    """
    session_per_s = demand.requests_per_s / demand.sessions
    sessions = _most(
        inputs.front_end_per_s / session_per_s,
        lambda num: min(bounds_at(num, demand, inputs, cache).values()) >= num * session_per_s,
    )
    return ServerCapacity(sessions, sessions * session_per_s, bounds_at(sessions, demand, inputs, cache))


def bounds_at(sessions: float, demand: Demand, inputs: Inputs, cache: PrefixCache) -> dict[str, float]:
    """Return the requests a second that each limit allows a server with so many sessions."""
    cold_share, prefill_s = 1 - cache.hit_share(sessions), cold_tokens(inputs, cache) / inputs.computed_tokens_per_s
    # A request in the engine keeps its own document in the KV cache.
    slots, held_s = min(inputs.slots, int(cache.documents)), demand.held_s + cold_share * prefill_s
    in_slots = rate_in_time(
        slots, held_s, inputs.within_ms / 1000 - inputs.first_text_s, inputs.in_time, cold_share, prefill_s
    )
    in_tokens = inputs.max_busy * inputs.computed_tokens_per_s / computed_tokens(sessions, demand, inputs, cache)
    return {
        "slots": in_slots / demand.engine_share,
        "computed tokens": in_tokens / demand.engine_share,
        "front end": inputs.front_end_per_s,
    }


def cold_tokens(inputs: Inputs, cache: PrefixCache) -> float:
    """Return the prompt tokens that a request computes beyond those of others if its document is not in the cache."""
    return max(0.0, cache.document_tokens - inputs.new_prompt_tokens)


def computed_tokens(sessions: float, demand: Demand, inputs: Inputs, cache: PrefixCache) -> float:
    """Return the tokens that a GPU computes for a request on average: of its prompt, and K + 1 of each step."""
    num_steps = demand.generated_tokens / inputs.tokens_per_step
    cold = (1 - cache.hit_share(sessions)) * cold_tokens(inputs, cache)
    return inputs.new_prompt_tokens + cold + num_steps * (inputs.draft_tokens + 1)


def rate_in_time(
    slots: int, held_s: float, budget_s: float, in_time: float, cold_share: float = 0.0, prefill_s: float = 0.0
) -> float:
    """Return the highest rate, 1/s, at which a share `in_time` of the requests waits at most `budget_s` for a slot.

    A share `cold_share` of the requests may only wait `prefill_s` less. The queue is M/M/c: Poisson arrivals,
    exponential times in a slot, first come first served (Erlang's C formula).
    """

    def is_in_time(rate: float) -> bool:
        load = rate * held_s
        waits = share_waiting(slots, load)
        late = (1 - cold_share) * waits * math.exp(-(slots - load) * budget_s / held_s)
        cold_late = waits * math.exp(-(slots - load) * (budget_s - prefill_s) / held_s) if budget_s >= prefill_s else 1
        return late + cold_share * cold_late <= 1 - in_time

    return _most(slots / held_s, is_in_time)


def share_waiting(slots: int, load: float) -> float:
    """Return the share of requests that wait; `load` is the mean number of slots in use, below `slots`."""
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / slots * (1 - blocked))


def _most(high: float, holds: Callable[[float], bool]) -> float:
    """Return the largest number from 0 to `high` for which `holds` is true, by bisection."""
    low = 0.0
    for _ in range(28):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """One region. `busy` is its sessions at the busiest time, as a share of those that its servers hold.

    "If lost" is the worst loss of other regions, whose users go to the others in proportion to their shares; None with
    one region. What the prefix cache does is not known of a measured server.
    """

    name: str
    requests_per_s: float
    needed_gpus: int  # GPUs for its own requests, those of a lost region if they are to be answered, and the surge
    gpus: int  # GPUs that it has: the given ones, or those needed
    busy: float
    busy_if_lost: float | None
    hit_share: float | None
    hit_share_if_lost: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan. A measured server has no model of its capacity and of its cache."""

    inputs: Inputs
    demand: Demand
    capacity: ServerCapacity
    cache: PrefixCache | None
    regions: tuple[RegionPlan, ...]
    gpus: int
    needed_gpus: int
    usd_per_hour: float
    shown_per_hour: float
    """Completions shown in a mean hour. Too small a fleet shows fewer at all times, which is pessimistic."""
    usd_per_shown: float


def plan_of(inputs: Inputs) -> Plan:
    """Return the plan. Raises ValueError if a model does not fit."""
    demand, cache = demand_of(inputs), None
    if (rate := inputs.server_per_s) is None:
        cache = prefix_cache_of(inputs)
        capacity = capacity_of(demand, inputs, cache)
    else:
        capacity = ServerCapacity(rate / demand.requests_per_s * demand.sessions, rate, {"measured": rate})
    regions = tuple(_region(region, inputs, demand, capacity, cache) for region in inputs.regions)
    served = sum(region.share * min(1.0, 1 / each.busy) for region, each in zip(inputs.regions, regions, strict=True))
    gpus, needed = sum(region.gpus for region in regions), sum(region.needed_gpus for region in regions)
    shown_per_hour = demand.requests_per_s * demand.shown_share * 3600 * inputs.mean_load * served
    usd = gpus * inputs.gpu_usd_hour
    return Plan(inputs, demand, capacity, cache, regions, gpus, needed, usd, shown_per_hour, usd / shown_per_hour)


def _region(
    region: Region, inputs: Inputs, demand: Demand, capacity: ServerCapacity, cache: PrefixCache | None
) -> RegionPlan:
    lost_share = inputs.lost_share(region)
    planned_per_s = demand.requests_per_s * region.share / (1 - lost_share if inputs.survive else 1)
    needed = (math.ceil(planned_per_s / capacity.requests_per_s) + inputs.surge) * inputs.gpus_per_server
    gpus = inputs.gpus_per_region or needed
    own = demand.sessions * region.share * inputs.gpus_per_server / gpus  # sessions of a server
    together = own / (1 - lost_share)
    is_alone = lost_share == 0
    return RegionPlan(
        name=region.name,
        requests_per_s=demand.requests_per_s * region.share,
        needed_gpus=needed,
        gpus=gpus,
        busy=own / capacity.sessions,
        busy_if_lost=None if is_alone else together / capacity.sessions,
        hit_share=cache.hit_share(own) if cache else None,
        hit_share_if_lost=cache.hit_share(together) if cache and not is_alone else None,
    )
