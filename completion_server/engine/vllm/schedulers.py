"""vLLM's schedulers with a K schedule that changes while they run; they live in the engine core's process.

Relied upon of vLLM: that its configuration names the scheduler's class (`scheduler_cls`), that this scheduler reads its
attribute `dynamic_sd_lookup`, K by batch size, at each step, and has its requests in `running`. Where a version lacks
either attribute the scheduler stays as vLLM made it, and says so in the table.

A request that wants no drafts says so in its sampling parameters. Its drafts are dropped before the step that would
verify them, as vLLM does itself with those that a grammar forbids; where no other runs none are made.
"""

from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from completion_server.engine.vllm.schedule_table import SPECULATE, join_table


class _FollowsTable(Scheduler):
    """Puts the table's newest schedule in force before each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        read = (getattr(self, name, None) for name in ("dynamic_sd_lookup", "running"))
        can_follow = all(isinstance(each, list) for each in read)
        self._lookup: list[int] = self.dynamic_sd_lookup or [] if can_follow else []
        """The schedule in force."""
        self._table = join_table(self.scheduler_config.max_num_seqs, can_follow=can_follow)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step; see vLLM."""
        if self._table is None:
            return super().schedule(*args, **kwargs)
        lookup = self._lookup = self._table.read_new() or self._lookup
        undrafted = [request for request in self.running if not _speculates(request.sampling_params)]
        for request in undrafted:
            request.spec_token_ids = []
        nobody_drafts = undrafted and len(undrafted) == len(self.running)
        self.dynamic_sd_lookup = [0] * len(lookup) if nobody_drafts else lookup
        return super().schedule(*args, **kwargs)


def _speculates(sampling_params: SamplingParams | None) -> bool:
    extra = sampling_params.extra_args if sampling_params is not None else None
    return extra is None or extra.get(SPECULATE) is not False


class LiveScheduler(_FollowsTable):
    """For an engine core that plans a step when the one before it has ended."""


class LiveAsyncScheduler(_FollowsTable, AsyncScheduler):
    """For an engine core that plans a step while the one before it runs."""
