"""The plan: servers and GPUs of each region, what they cost, and how that changes with each assumption. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.planning.assumptions import SECTIONS, Assumptions, Gpu, assumptions_of
from loadtest.planning.capacity import ServerCapacity, capacity_of, cold_requests, computed_tokens
from loadtest.planning.demand import Demand, demand_of
from loadtest.planning.prefix_cache import ColdStart, PrefixCache, cold_start, prefix_cache_of
from loadtest.planning.report import Measured

HOURS_PER_MONTH = 730
_SUM_TOLERANCE = 1e-6
_MAX_SURGE = 1000


@dataclass(frozen=True, slots=True)
class Region:
    """A region and its share of the sessions."""

    name: str
    share: float


@dataclass(frozen=True, slots=True)
class FleetRequirements:
    """What the fleet is to survive, and what it already is."""

    regions: tuple[Region, ...]
    survive: int = 0
    """How many regions may be lost while the others still answer in time."""
    surge: int = 0
    """Servers more in each region."""
    gpus_per_region: int | None = None
    """The GPUs of each region if they are given; else as many as are needed."""

    def __post_init__(self) -> None:
        """Check the shares and the numbers."""
        if not self.regions or not all(region.share > 0 for region in self.regions):
            msg = f"region: shares must be above 0, got {_said(self.regions)}"
            raise ValueError(msg)
        total = sum(region.share for region in self.regions)
        if not abs(total - 1) <= _SUM_TOLERANCE:
            msg = f"region: shares must come to 1, got {_said(self.regions)}, which come to {total:g}"
            raise ValueError(msg)
        if len({region.name for region in self.regions}) < len(self.regions):
            msg = f"region: names must differ, got {_said(self.regions)}"
            raise ValueError(msg)
        if not 0 <= self.survive < len(self.regions):
            limit = f"from 0 to {len(self.regions) - 1}, one less than there are regions"
            msg = f"survive: must be {limit}, got {self.survive}"
            raise ValueError(msg)
        if not 0 <= self.surge <= _MAX_SURGE:
            msg = f"surge: must be from 0 to {_MAX_SURGE}, got {self.surge}"
            raise ValueError(msg)

    @property
    def num_lost(self) -> int:
        """Regions of a loss: one, unless the fleet is to survive more."""
        return max(1, self.survive)

    def lost_share(self, region: Region) -> float:
        """Return the share of the sessions whose region is lost, in the worst case for `region`; nan if it is alone."""
        others = sorted((each.share for each in self.regions if each is not region), reverse=True)
        return math.fsum(others[: self.num_lost]) if others else math.nan


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """The servers of one region. `busy` is its sessions at the busiest time, as a share of those that it holds.

    "If lost" is the worst loss of other regions; nan and None with one region. What the prefix cache does is not known
    of a measured server.
    """

    name: str
    share: float
    requests_per_s: float
    needed_gpus: int
    """GPUs for its own requests, those of a lost region if they are to be answered, and the surge."""
    gpus: int
    """GPUs that it has: the given ones, or those needed."""
    busy: float
    busy_if_lost: float
    hit_share: float
    """Requests whose document is in the prefix cache."""
    hit_share_if_lost: float
    cold_start: ColdStart | None
    """What the users of the lost regions add when they come."""

    @property
    def holds(self) -> bool:
        """Whether its GPUs are as many as it needs."""
        return self.gpus >= self.needed_gpus


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan."""

    assumptions: Assumptions
    requirements: FleetRequirements
    measured: Measured | None
    demand: Demand
    capacity: ServerCapacity
    cache: PrefixCache | None
    """The prefix cache of a server; None if a server was measured."""
    regions: tuple[RegionPlan, ...]

    @property
    def is_shown_share_modelled(self) -> bool:
        """Whether the share of completions shown comes from the model of typing, not from counts."""
        is_measured = self.measured is not None and self.measured.shown_share is not None
        return not is_measured and self.assumptions.answers.shown_share is None

    @property
    def gpus(self) -> int:
        """GPUs of all regions."""
        return sum(region.gpus for region in self.regions)

    @property
    def needed_gpus(self) -> int:
        """GPUs that all regions need."""
        return sum(region.needed_gpus for region in self.regions)

    @property
    def usd_per_hour(self) -> float:
        """Price of all GPUs for an hour."""
        return self.gpus * self.assumptions.money.gpu_usd_hour

    @property
    def usd_per_month(self) -> float:
        """Price of all GPUs for a month of 730 hours."""
        return self.usd_per_hour * HOURS_PER_MONTH

    @property
    def shown_per_hour(self) -> float:
        """Completions shown in a mean hour. Too small a fleet shows fewer at all times, which is pessimistic."""
        served = sum(region.share * min(1.0, 1 / region.busy) for region in self.regions)
        return self.demand.shown_per_s * 3600 * self.assumptions.money.mean_load * served

    @property
    def usd_per_shown(self) -> float:
        """Cost of a completion that is shown."""
        return self.usd_per_hour / self.shown_per_hour

    @property
    def usd_per_request(self) -> float:
        """Cost of a request."""
        return self.usd_per_hour / (self.demand.requests_per_s * 3600 * self.assumptions.money.mean_load)


def plan_of(assumptions: Assumptions, requirements: FleetRequirements, measured: Measured | None = None) -> Plan:
    """Return the plan. A measured server replaces the model of one.

    Raises:
        ValueError: the GPUs of a region do not divide into servers.

    """
    per_server, given = assumptions.gpu.gpus_per_server, requirements.gpus_per_region
    if given is not None and (given < 1 or given % per_server):
        msg = f"gpus_per_region: must be a multiple of gpus_per_server ({per_server}) and at least 1, got {given}"
        raise ValueError(msg)
    demand, cache = demand_of(assumptions.users, assumptions.answers), None
    if measured is None:
        cache = prefix_cache_of(assumptions.users, assumptions.gpu, assumptions.memory)
        capacity = capacity_of(demand, assumptions.answers, assumptions.gpu, cache)
    else:
        demand = measured.replacing(demand)
        rate = measured.requests_per_s
        sessions = rate / demand.requests_per_s * demand.sessions
        capacity = ServerCapacity(rate, sessions, measured.source, {measured.source: rate})
    regions = tuple(
        _region(region, requirements, demand, capacity, assumptions.gpu, cache) for region in requirements.regions
    )
    return Plan(assumptions, requirements, measured, demand, capacity, cache, regions)


def gpus_for(plan: Plan, sessions: int) -> int:
    """Return the GPUs that another number of sessions needs, all else being as in the plan."""
    total_per_s = plan.demand.requests_per_s * sessions / plan.demand.sessions
    servers = (_servers(region, plan.requirements, total_per_s, plan.capacity) for region in plan.requirements.regions)
    return sum(servers) * plan.assumptions.gpu.gpus_per_server


def _servers(region: Region, requirements: FleetRequirements, total_per_s: float, capacity: ServerCapacity) -> int:
    planned_per_s = total_per_s * region.share
    if requirements.survive:
        planned_per_s /= 1 - requirements.lost_share(region)
    return math.ceil(planned_per_s / capacity.requests_per_s) + requirements.surge


def _region(
    region: Region, requirements: FleetRequirements, demand: Demand, capacity: ServerCapacity, gpu: Gpu,
    cache: PrefixCache | None,
) -> RegionPlan:  # fmt: skip
    needed = _servers(region, requirements, demand.requests_per_s, capacity) * gpu.gpus_per_server
    gpus = needed if requirements.gpus_per_region is None else requirements.gpus_per_region
    own = demand.sessions * region.share * gpu.gpus_per_server / gpus
    # The users of a lost region go to the others in proportion to their shares.
    together = own / (1 - requirements.lost_share(region))
    return RegionPlan(
        name=region.name,
        share=region.share,
        requests_per_s=demand.requests_per_s * region.share,
        needed_gpus=needed,
        gpus=gpus,
        busy=own / capacity.sessions,
        busy_if_lost=together / capacity.sessions,
        hit_share=cache.hit_share(own) if cache else math.nan,
        hit_share_if_lost=cache.hit_share(together) if cache and together > own else math.nan,
        cold_start=_cold_start(own, together, demand, gpu, cache) if cache and together > own else None,
    )


def _cold_start(own: float, together: float, demand: Demand, gpu: Gpu, cache: PrefixCache) -> ColdStart:
    """Return the cold start of a server whose sessions become `together`."""
    cold = cold_requests(together, gpu, cache)
    requests_per_s = demand.requests_per_s * demand.engine_share / demand.sessions * together
    busy = requests_per_s * computed_tokens(demand, gpu, cold) / gpu.computed_tokens_per_s
    users = (together - own) * cache.typing_share
    return cold_start(cache, users, cold.tokens / gpu.computed_tokens_per_s, 1 - busy)


def _said(regions: Sequence[Region]) -> str:
    return ", ".join(f"{region.name}={region.share:g}" for region in regions) or "none"


@dataclass(frozen=True, slots=True)
class Variation:
    """A plan with one assumption at its low and at its high estimate."""

    name: str
    value: float
    low: float
    high: float
    at_low: Plan
    at_high: Plan

    @property
    def cost_factor(self) -> float:
        """Ratio of the higher cost of a completion to the lower one."""
        costs = self.at_low.usd_per_shown, self.at_high.usd_per_shown
        return max(costs) / min(costs)


def variations(plan: Plan) -> list[Variation]:
    """Return a variation for each estimated assumption that changes the plan, those with the largest effect first."""
    found = []
    for section, kind in SECTIONS.items():
        for name, assumption in assumptions_of(kind).items():
            if assumption.low is None or assumption.high is None:
                continue
            value = getattr(getattr(plan.assumptions, section), name)
            low, high = min(assumption.low, value), max(assumption.high, value)
            try:
                at_low, at_high = _with(plan, section, name, low), _with(plan, section, name, high)
            except ValueError:  # an estimate that contradicts another assumption, such as no time left for the queue
                continue
            found.append(Variation(name, value, low, high, at_low, at_high))
    changing = [each for each in found if each.cost_factor > 1 or each.at_low.needed_gpus != each.at_high.needed_gpus]
    return sorted(changing, key=lambda each: -each.cost_factor)


def _with(plan: Plan, section: str, name: str, value: Any) -> Plan:  # noqa: ANN401 - a field of any type
    changed = replace(getattr(plan.assumptions, section), **{name: value})
    assumptions: Assumptions = replace(plan.assumptions, **{section: changed})
    return plan_of(assumptions, plan.requirements, plan.measured)


@dataclass(frozen=True, slots=True)
class CostLever:
    """A change of one quantity that alone gives the target cost."""

    name: str
    value: float
    is_possible: bool
    """Whether the value is within the bounds of its assumption."""


def cost_levers(plan: Plan, usd_per_shown: float) -> list[CostLever]:
    """Return what alone makes a completion of this fleet cost `usd_per_shown`.

    The cost is proportional to the price and inverse to the number of completions shown.
    """
    factor = usd_per_shown / plan.usd_per_shown
    money, demand = plan.assumptions.money, plan.demand
    mean_load = money.mean_load / factor
    shown_in_mean_hour = plan.shown_per_hour / demand.sessions / factor
    return [
        CostLever("gpu_usd_hour", money.gpu_usd_hour * factor, True),
        CostLever("mean_load", mean_load, mean_load <= 1),
        CostLever("shown_per_session_mean_hour", shown_in_mean_hour, True),
    ]
