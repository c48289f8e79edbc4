"""vLLM's schedulers with a K that changes at run time; they live in the engine core's process.

They rely on these properties of vLLM: its configuration names the scheduler's class (`scheduler_cls`), this scheduler
reads its attribute `dynamic_sd_lookup`, K by number of sequences, at each step, it has its requests in `running`, and
clients can call any method of the engine core, which runs it between two steps. In a version without
`dynamic_sd_lookup` or `running` the scheduler stays unchanged, and says so when K is set.

vLLM leaves `dynamic_sd_lookup` at None if it was configured without a schedule, which keeps full CUDA graphs
(`engine.full_cuda_graphs`). The scheduler then begins with the largest K for all batch sizes.

A request that refuses drafts has a flag in its sampling parameters. Its drafts are dropped before the step that would
verify them, as vLLM itself drops drafts that a grammar forbids. If all requests refuse drafts, none are proposed.

n-gram drafts are looked up here instead of in the worker: no exchange with it, and the step that ends a prompt has
some, too. A request that refuses drafts has there what it must begin with.
"""

from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

from completion_server.engine.vllm import SET_LOOKUP, SPECULATE
from completion_server.engine.vllm.drafts.recalled import RecalledDrafts
from completion_server.engine.vllm.healing import HealingScheduler
from completion_server.engine.vllm.patches.drafts import RUNS_DRAFT, unfetched_drafts


class _LookupScheduler(HealingScheduler):
    """Makes the lookup that was set last active before each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.num_spec_tokens and getattr(self, "dynamic_sd_lookup", ()) is None:
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
        attributes = (getattr(self, name, None) for name in ("dynamic_sd_lookup", "running"))
        self._is_supported = all(isinstance(each, list) for each in attributes)
        self._active_lookup: list[int] = self.dynamic_sd_lookup or [] if self._is_supported else []
        self.proposes_drafts = True
        """Whether the step planned last asks the worker for drafts; read by a patch of vLLM's engine core."""
        method = getattr(self.vllm_config.speculative_config, "method", None)
        is_recalled = method == "ngram" and self.drafts_here and self._is_supported
        self._recalled = RecalledDrafts() if is_recalled else None
        self._k = 0
        """That of the step, if all that wait are in it."""
        unfetched_drafts.apply()
        setattr(EngineCore, SET_LOOKUP, _set_lookup)

    def set_lookup(self, lookup: list[int]) -> str:
        """Make `lookup` active from the next step on; return why that can't be, "" if it can."""
        if not self._is_supported:
            return "the scheduler of this vLLM no longer reads a lookup of K at each step"
        self._active_lookup = lookup
        return ""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step; see vLLM."""
        if not self._is_supported:
            return super().schedule(*args, **kwargs)
        lookup = self._active_lookup
        refusing = [request for request in self.running if not _speculates(request.sampling_params)]
        for request in refusing:
            request.spec_token_ids = []
        is_none_drafted = refusing and len(refusing) == len(self.running)
        if self._recalled is not None:
            self._k = lookup[min(len(self.running) + len(self.waiting), len(lookup) - 1)]
            self._look_up(self._recalled)
        asks_worker = self._recalled is None and not is_none_drafted
        self.dynamic_sd_lookup = lookup if asks_worker else [0] * len(lookup)
        output = super().schedule(*args, **kwargs)
        setattr(output, RUNS_DRAFT, self._recalled is None and any(lookup))
        self.proposes_drafts = output.num_spec_tokens_to_schedule > 0
        return output

    def _look_up(self, recalled: RecalledDrafts) -> None:
        """Give the running requests n-gram drafts."""
        recalled.keep_ended(self.requests)
        for request in self.running:
            if request.num_computed_tokens >= request.num_prompt_tokens and _speculates(request.sampling_params):
                room = self.max_model_len - request.num_tokens
                drafts = recalled.after(request, min(self._k, room))
                request.spec_token_ids = self.structured_output_manager.validate_tokens(request, drafts)

    def first_drafts(self, request: Request) -> list[int]:
        """Return the drafts of a prompt's last step: the given beginning, and what followed it."""
        given = super().first_drafts(request)
        if self._recalled is None or not _speculates(request.sampling_params):
            return given
        drafts = [*given, *self._recalled.after(request, self._k - len(given), given)]
        return self.structured_output_manager.validate_tokens(request, drafts)


def _set_lookup(core: EngineCore, lookup: list[int]) -> str:
    """Set the lookup of an engine core's scheduler; see `SET_LOOKUP`."""
    assert isinstance(core.scheduler, _LookupScheduler)
    return core.scheduler.set_lookup(lookup)


def _speculates(sampling_params: SamplingParams | None) -> bool:
    extra = sampling_params.extra_args if sampling_params is not None else None
    return extra is None or extra.get(SPECULATE) is not False


class HealingAsyncScheduler(HealingScheduler, AsyncScheduler):
    """For an engine core with a constant K that plans a step while the previous one runs."""


class LookupScheduler(_LookupScheduler):
    """For an engine core that plans a step after the previous one has ended."""


class LookupAsyncScheduler(_LookupScheduler, AsyncScheduler):
    """For an engine core that plans a step while the previous one runs."""
