"""The scheduler's part of a shared engine core: statistics for all clients, and an end for the requests of a dead one.

vLLM sends the statistics of each step to one client that has outputs in it, whichever comes first. Here they go to the
parent, client 0, in each step, with the counts of the outputs of all clients. The state of the core is also on a board.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from completion_server.engine.vllm.patches.sharing import repeated_ready
from completion_server.engine.vllm.sharing.board import open_published_board
from completion_server.engine.vllm.sharing.clients import client_of
from completion_server.engine.vllm.token_accounting import REPORT_FIELD, StepCounts


class SharedScheduler(Scheduler):
    """A scheduler whose requests may be several clients'. With one client it is vLLM's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._board = open_published_board()
        if self._board is not None:
            repeated_ready.apply()

    def speculates(self, request: Request) -> bool:
        """Return whether a request takes drafts."""
        raise NotImplementedError

    def update_from_output(self, scheduler_output: SchedulerOutput, model_output: Any) -> dict[int, EngineCoreOutputs]:
        """Return the outputs of a step by client; see vLLM."""
        if self._board is None:
            return super().update_from_output(scheduler_output, model_output)
        computed = (self.requests.get(request_id) for request_id in scheduler_output.num_scheduled_tokens)
        counts = StepCounts(has_undrafted=any(request and not self.speculates(request) for request in computed))
        outputs = super().update_from_output(scheduler_output, model_output)
        stats, now = None, time.monotonic()
        for each in outputs.values():
            stats, each.scheduler_stats = each.scheduler_stats or stats, None
            for output in each.outputs:
                counts.add(output, now)
        if stats is not None:
            setattr(stats, REPORT_FIELD, counts.as_report())
            outputs.setdefault(0, EngineCoreOutputs()).scheduler_stats = stats
            num_waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
            self._board.write(stats.num_running_reqs, num_waiting, stats.kv_cache_usage)
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """End requests; see vLLM. An id that names a client stands for all of its requests."""
        if self._board is not None and request_ids is not None:
            ids = [request_ids] if isinstance(request_ids, str) else request_ids
            request_ids = [each for given in ids for each in self._expand(given)]
        return super().finish_requests(request_ids, finished_status)

    def _expand(self, request_id: str) -> Iterator[str]:
        client = client_of(request_id)
        if client is None:
            yield request_id
        else:
            yield from (each for each, request in self.requests.items() if request.client_index == client)
