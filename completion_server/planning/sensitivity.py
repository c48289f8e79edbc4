"""How a plan changes with each of its assumptions, and with all that cost money. Pure."""

from dataclasses import dataclass, replace
from typing import Any

from completion_server.planning.assumptions import SECTIONS, Assumptions, assumptions_of
from completion_server.planning.fleet import Plan, plan_of


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
