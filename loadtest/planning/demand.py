"""What the users ask for, and how many requests a second one server answers in time. Pure.

Three things limit a server: its slots, the tokens that its GPU computes, and its own process. A measured server needs
no such model: its rate replaces it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from loadtest.planning.assumptions import Answers, Gpu, Users
from loadtest.traffic.typist import TypingModel

_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests of all sessions at the busiest time. Shares are of the requests, prefetches included."""

    sessions: int
    requests_per_s: float
    """Requests of all sessions."""
    shown_share: float
    """Completions that are shown: in time, with text, and long enough before the next key."""
    prefetch_share: float
    """Prefetches."""
    with_first_text_share: float
    """Requests whose first text comes before the next key, if they have text."""
    standing_share: float
    """Requests whose text, if they have any, stands for long enough before the next key."""
    superseded_share: float
    """Requests that the next key overtakes before their answer is whole."""
    held_s: float
    """How long a request holds its slot on average: until its answer is whole or the next key comes."""
    generated_tokens: float
    """Tokens generated for a request on average."""
    engine_share: float
    """Requests that reach a GPU; a cache answers the others."""

    @property
    def shown_per_s(self) -> float:
        """Completions shown at the busiest time."""
        return self.requests_per_s * self.shown_share

    @property
    def requests_per_session_hour(self) -> float:
        """Requests of one open session in an hour like the busiest."""
        return self.requests_per_s * 3600 / self.sessions

    @property
    def shown_per_session_hour(self) -> float:
        """Completions shown to one open session in an hour like the busiest."""
        return self.shown_per_s * 3600 / self.sessions


def demand_of(users: Users, answers: Answers) -> Demand:
    """Return what the sessions ask for, if each answer starts at once."""
    gaps, debounce_s = TypingModel(away_share=users.away_share), users.debounce_ms / 1000
    typed_per_key = gaps.requests_per_key(debounce_s)
    requests_per_key = typed_per_key + users.prefetch_share
    typed_share = typed_per_key / requests_per_key
    standing_share = typed_share * gaps.share_standing(debounce_s, answers.first_text_s + answers.readable_ms / 1000)
    held_s = gaps.mean_standing_s(debounce_s, answers.service_s)
    first_token_s = min(answers.first_token_ms / 1000, answers.service_s)
    requests_per_s = users.sessions * users.typing_share * gaps.keys_per_s * requests_per_key
    if users.requests_per_session_hour is not None:
        requests_per_s = users.sessions * users.requests_per_session_hour / 3600
    shown_share = answers.shown_share
    if shown_share is None:
        shown_share = standing_share * answers.text_share * answers.in_time
    return Demand(
        sessions=users.sessions,
        requests_per_s=requests_per_s,
        shown_share=shown_share,
        prefetch_share=1 - typed_share,
        with_first_text_share=typed_share * gaps.share_standing(debounce_s, answers.first_text_s),
        standing_share=standing_share,
        superseded_share=1 - gaps.share_standing(debounce_s, answers.service_s),
        held_s=held_s,
        generated_tokens=answers.tokens_per_s * (held_s - gaps.mean_standing_s(debounce_s, first_token_s)),
        engine_share=1 - users.cached_share,
    )


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
