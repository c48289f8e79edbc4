"""vLLM's schedulers with a K that changes at run time; they live in the engine core's process.

They rely on three properties of vLLM: its configuration names the scheduler's class (`scheduler_cls`), this scheduler
reads its attribute `dynamic_sd_lookup`, K by number of sequences, at each step, and it has its requests in `running`.
In a version without `dynamic_sd_lookup` or `running` the scheduler stays unchanged, and says so in the shared memory.

vLLM leaves `dynamic_sd_lookup` at None if it was configured without a schedule, which keeps full CUDA graphs
(`engine.full_cuda_graphs`). The scheduler then begins with the largest K for all batch sizes.

A request that refuses drafts has a flag in its sampling parameters. Its drafts are dropped before the step that would
verify them, as vLLM itself drops drafts that a grammar forbids. If all requests refuse drafts, none are proposed.
"""

from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from completion_server.engine.vllm.drafts.shared_lookup import (
    RUNS_DRAFT,
    SPECULATE,
    is_lookup_published,
    open_published_lookup,
)
from completion_server.engine.vllm.patches.drafts import unfetched_drafts
from completion_server.engine.vllm.sharing.scheduling import SharedScheduler


class _LookupScheduler(SharedScheduler):
    """Makes the newest published lookup active before each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.num_spec_tokens and is_lookup_published() and getattr(self, "dynamic_sd_lookup", ()) is None:
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
        attributes = (getattr(self, name, None) for name in ("dynamic_sd_lookup", "running"))
        is_supported = all(isinstance(each, list) for each in attributes)
        self._active_lookup: list[int] = self.dynamic_sd_lookup or [] if is_supported else []
        self.proposes_drafts = True
        """Whether the step planned last asks for drafts; read by a patch of vLLM's engine core."""
        unfetched_drafts.apply()
        self._shared = open_published_lookup(self.scheduler_config.max_num_seqs, is_supported=is_supported)

    def speculates(self, request: Request) -> bool:
        """Return whether a request takes drafts. One that refuses them gets some all the same if K is locked."""
        return self._shared is None or _speculates(request.sampling_params)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step; see vLLM."""
        if self._shared is None:
            return super().schedule(*args, **kwargs)
        lookup = self._active_lookup = self._shared.read_new() or self._active_lookup
        refusing = [request for request in self.running if not _speculates(request.sampling_params)]
        for request in refusing:
            request.spec_token_ids = []
        is_none_drafted = refusing and len(refusing) == len(self.running)
        self.dynamic_sd_lookup = [0] * len(lookup) if is_none_drafted else lookup
        output = super().schedule(*args, **kwargs)
        setattr(output, RUNS_DRAFT, any(lookup))
        self.proposes_drafts = output.num_spec_tokens_to_schedule > 0
        return output


def _speculates(sampling_params: SamplingParams | None) -> bool:
    extra = sampling_params.extra_args if sampling_params is not None else None
    return extra is None or extra.get(SPECULATE) is not False


class LookupScheduler(_LookupScheduler):
    """For an engine core that plans a step after the previous one has ended."""


class LookupAsyncScheduler(_LookupScheduler, AsyncScheduler):
    """For an engine core that plans a step while the previous one runs."""
