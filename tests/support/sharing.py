"""Runs that show whether users and tenants get their shares of a simulated engine that is asked for too much."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from completion_server.core.request import Trigger
from completion_server.requests.scheduling.settings import SchedulingSettings, ShedSettings
from loadtest.simulation.workload import EditorModel, Policy, SimulatedRequest, SimulatedResult, Workload
from loadtest.simulation.world import simulate
from loadtest.traffic.typist import TypingModel

_ABUSER = 1_000_000
_NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class AbuseModel:
    """One user beside the others. The sizes are assumptions."""

    rate: float = 20.0
    """Requests, as a multiple of another user's."""
    document_tokens: int = 300
    """Prompt tokens of each request: a new document every time, about ten times what a key of another user costs."""

    def requests(self, workload: Workload, until_s: float) -> list[SimulatedRequest]:
        """Return the abuser's requests: explicit, none superseded by the next, and never hung up."""
        per_s = self.rate * workload.editors.requests_per_s
        return [
            SimulatedRequest(
                _ABUSER, number / per_s, _NEVER_S, is_pause=False, trigger=Trigger.EXPLICIT,
                num_prompt_tokens=self.document_tokens, lane=str(number),
            )
            for number in range(int(until_s * per_s))
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Service:
    """How users were served."""

    ttft_s: Sequence[float]
    """Of the answered requests, in order."""
    answered_share: float
    num_tokens: int
    """Computed for them."""


def overload(load: float, seconds: float, seed: int) -> Workload:
    """Return a workload on a measured engine with processors of its own; its users hang up at their next key."""
    return Workload(
        load=load, seconds=seconds, seed=seed, engine="measured", num_slots=SchedulingSettings().max_slots,
        shed_budget_s=ShedSettings().budget_ms / 1000, hangs_up=True, shares_processors=False,
        editors=EditorModel(TypingModel()),
    )  # fmt: skip


def beside_an_abuser(workload: Workload, model: AbuseModel | None) -> tuple[Service, Service]:
    """Return how the users of a workload and an abuser beside them were served; without a model there is none."""
    requests = workload.requests()
    if model is not None:
        requests = sorted([*requests, *model.requests(workload, requests[-1].at)], key=lambda request: request.at)
    results = [each for each in simulate(workload, Policy(), requests) if workload.counts(each.request)]
    users = [each for each in results if each.request.user != _ABUSER]
    return _service(users), _service([each for each in results if each.request.user == _ABUSER])


def of_tenants(workload: Workload, weights: Mapping[str, float]) -> dict[str, Service]:
    """Return how tenants with these weights were served, if the users of a workload belong to them in turn."""
    names = list(weights)
    requests = [replace(each, tenant=names[each.user % len(names)]) for each in workload.requests()]
    results = simulate(workload, Policy(tenant_weights=weights), requests)
    counted = [each for each in results if workload.counts(each.request)]
    return {name: _service([each for each in counted if each.request.tenant == name]) for name in names}


def pooled(runs: Sequence[Service]) -> Service:
    """Return several runs of equal length as one."""
    ttft_s = sorted(each for run in runs for each in run.ttft_s)
    answered_share = sum(run.answered_share for run in runs) / len(runs)
    return Service(ttft_s, answered_share, sum(run.num_tokens for run in runs))


def _service(results: Sequence[SimulatedResult]) -> Service:
    ttft_s = sorted(each.ttft_s for each in results if each.ttft_s is not None)
    return Service(ttft_s, len(ttft_s) / max(1, len(results)), sum(each.num_computed for each in results))
