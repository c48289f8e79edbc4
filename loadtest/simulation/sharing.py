"""Workloads that show whether users and tenants get their shares of a simulated engine, and their figures. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from completion_server.core.request import Trigger
from loadtest.simulation.workload import SimulatedRequest, SimulatedResult, Workload

_ABUSER = 1_000_000
_NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class AbuseModel:
    """One user beside the others, who asks as often as many of them. The sizes are assumptions."""

    rate: float = 20.0
    """Requests, as a multiple of another user's."""
    document_tokens: int = 300
    """Prompt tokens of each request: a new document every time, about ten times what a key of another user costs."""

    def requests(self, workload: Workload, until_s: float) -> list[SimulatedRequest]:
        """Return the abuser's requests: explicit, none superseded by the next, and never hung up."""
        per_s = self.rate * workload.editors.requests_per_s
        return [
            SimulatedRequest(
                _ABUSER, number / per_s, _NEVER_S, is_pause=False, tenant="", trigger=Trigger.EXPLICIT,
                num_prompt_tokens=self.document_tokens, lane=str(number),
            )
            for number in range(int(until_s * per_s))
        ]  # fmt: skip


def with_abuser(requests: Sequence[SimulatedRequest], workload: Workload, model: AbuseModel) -> list[SimulatedRequest]:
    """Return the requests of the others and of an abuser beside them."""
    abuses = model.requests(workload, max(request.at for request in requests))
    return sorted([*requests, *abuses], key=lambda request: request.at)


def of_tenants(requests: Sequence[SimulatedRequest], tenants: Sequence[str]) -> list[SimulatedRequest]:
    """Return the same requests of users who belong to tenants in turn."""
    return [replace(request, tenant=tenants[request.user % len(tenants)]) for request in requests]


def others(results: Sequence[SimulatedResult], workload: Workload) -> list[SimulatedResult]:
    """Return the results that count of everybody but the abuser."""
    return [each for each in results if each.request.user != _ABUSER and workload.counts(each.request)]
