"""How many requests a second one server answers in time. Pure.

Three things limit a server: its slots, the tokens that its GPU computes, and its own process. A measured server needs
no such model: its rate replaces it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from completion_server.planning.assumptions import Answers, Gpu
from completion_server.planning.demand import Demand

_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class ServerCapacity:
    """Requests a second that one server answers in time, cached ones included."""

    requests_per_s: float
    limit: str
    """What limits it, in words."""
    bounds: dict[str, float]
    """Requests a second by each of the limits; only the measured one if it was measured."""


def capacity_of(demand: Demand, answers: Answers, gpu: Gpu) -> ServerCapacity:
    """Return the capacity of a server for requests like those of `demand`."""
    slots = rate_in_time(gpu.slots, demand.held_s, answers.wait_budget_s, answers.in_time)
    tokens = gpu.max_busy * gpu.computed_tokens_per_s / computed_tokens(demand, gpu)
    bounds = {
        "slots": slots / demand.engine_share,
        "computed tokens": tokens / demand.engine_share,
        "front end": gpu.front_end_per_s,
    }
    limit = min(bounds, key=lambda name: bounds[name])
    return ServerCapacity(bounds[limit], limit, bounds)


def computed_tokens(demand: Demand, gpu: Gpu) -> float:
    """Return the tokens that a GPU computes for a request: its new prompt tokens, and K + 1 of each step."""
    num_steps = demand.generated_tokens / gpu.tokens_per_step
    return gpu.new_prompt_tokens + num_steps * (gpu.draft_tokens + 1)


@lru_cache(maxsize=1024)  # a plan's variations and pictures ask for the same few
def rate_in_time(slots: int, held_s: float, budget_s: float, in_time: float) -> float:
    """Return the highest rate, 1/s, at which a share `in_time` of the requests waits at most `budget_s` for a slot.

    The queue is M/M/c: Poisson arrivals, exponential times in a slot, first come first served (Erlang's C formula).
    """
    low, high = 0.0, slots / held_s
    for _ in range(_BISECTIONS):
        rate = (low + high) / 2
        if share_waiting(slots, rate * held_s, budget_s / held_s) <= 1 - in_time:
            low = rate
        else:
            high = rate
    return low


def share_waiting(slots: int, load: float, budget: float) -> float:
    """Return the share of requests that wait longer than `budget`, in units of the time in a slot.

    `load` is the mean number of slots in use, below `slots`.
    """
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = load * blocked / (number + load * blocked)
    waits = blocked / (1 - load / slots * (1 - blocked))
    return waits * math.exp(-(slots - load) * budget)
