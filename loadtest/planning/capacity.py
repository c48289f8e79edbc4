"""How many sessions one server holds, and how many requests a second it answers in time. Pure.

Three things limit a server: its slots, the tokens that its GPU computes, and its own process. More sessions ask for
more, and also leave each document a shorter time in the prefix cache, so that more prompts are computed whole. A
measured server needs no such model: its rate replaces it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from loadtest.planning.assumptions import Answers, Gpu
from loadtest.planning.demand import Demand
from loadtest.planning.prefix_cache import PrefixCache

_BISECTIONS = 28


@dataclass(frozen=True, slots=True)
class ServerCapacity:
    """What one server answers in time."""

    requests_per_s: float
    """Of the sessions that it holds, those that a completion cache answers included."""
    sessions: float
    limit: str
    """What limits it, in words."""
    bounds: dict[str, float]
    """Requests a second by each of the limits at that number of sessions; only the measured one if it was measured."""


@dataclass(frozen=True, slots=True)
class ColdRequests:
    """Requests whose document is not in the prefix cache."""

    share: float = 0.0
    """Share of the requests."""
    tokens: float = 0.0
    """Prompt tokens that such a request computes beyond those of another one."""


def capacity_of(demand: Demand, answers: Answers, gpu: Gpu, cache: PrefixCache) -> ServerCapacity:
    """Return the most sessions like those of `demand` that a server holds, and their requests."""
    session_per_s = demand.requests_per_s / demand.sessions
    low, high = 0.0, gpu.front_end_per_s / session_per_s
    for _ in range(_BISECTIONS):
        sessions = (low + high) / 2
        if min(bounds_at(sessions, demand, answers, gpu, cache).values()) >= sessions * session_per_s:
            low = sessions
        else:
            high = sessions
    bounds = bounds_at(low, demand, answers, gpu, cache)
    return ServerCapacity(low * session_per_s, low, min(bounds, key=lambda name: bounds[name]), bounds)


def bounds_at(sessions: float, demand: Demand, answers: Answers, gpu: Gpu, cache: PrefixCache) -> dict[str, float]:
    """Return the requests a second that each limit allows a server with so many sessions."""
    cold = cold_requests(sessions, gpu, cache)
    # A request in the engine keeps its own document in the KV cache.
    slots = min(gpu.slots, int(cache.documents))
    prefill_s = cold.tokens / gpu.computed_tokens_per_s
    held_s = demand.held_s + cold.share * prefill_s
    in_slots = rate_in_time(slots, held_s, answers.wait_budget_s, answers.in_time, cold.share, prefill_s)
    in_tokens = gpu.max_busy * gpu.computed_tokens_per_s / computed_tokens(demand, gpu, cold)
    return {
        "slots": in_slots / demand.engine_share,
        "computed tokens": in_tokens / demand.engine_share,
        "front end": gpu.front_end_per_s,
    }


def cold_requests(sessions: float, gpu: Gpu, cache: PrefixCache) -> ColdRequests:
    """Return the cold requests of a server with so many sessions."""
    return ColdRequests(1 - cache.hit_share(sessions), max(0.0, cache.document_tokens - gpu.new_prompt_tokens))


def computed_tokens(demand: Demand, gpu: Gpu, cold: ColdRequests) -> float:
    """Return the tokens that a GPU computes for a request on average: of its prompt, and K + 1 of each step."""
    num_steps = demand.generated_tokens / gpu.tokens_per_step
    return gpu.new_prompt_tokens + cold.share * cold.tokens + num_steps * (gpu.draft_tokens + 1)


@lru_cache(maxsize=4096)  # a plan's variations and pictures ask for the same few
def rate_in_time(
    slots: int, held_s: float, budget_s: float, in_time: float, cold_share: float = 0.0, prefill_s: float = 0.0
) -> float:
    """Return the highest rate, 1/s, at which a share `in_time` of the requests waits at most `budget_s` for a slot.

    A share `cold_share` of the requests may only wait `prefill_s` less. The queue is M/M/c: Poisson arrivals,
    exponential times in a slot, first come first served (Erlang's C formula).
    """
    low, high = 0.0, slots / held_s
    for _ in range(_BISECTIONS):
        rate = (low + high) / 2
        load = rate * held_s
        waits = share_waiting(slots, load)
        late = (1 - cold_share) * waits * math.exp(-(slots - load) * budget_s / held_s)
        if budget_s < prefill_s:
            late += cold_share
        else:
            late += cold_share * waits * math.exp(-(slots - load) * (budget_s - prefill_s) / held_s)
        if late <= 1 - in_time:
            low = rate
        else:
            high = rate
    return low


def share_waiting(slots: int, load: float) -> float:
    """Return the share of requests that wait; `load` is the mean number of slots in use, below `slots`.

    They wait for an exponential time with a mean of 1 / (slots - load), in units of the time in a slot.
    """
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / slots * (1 - blocked))
