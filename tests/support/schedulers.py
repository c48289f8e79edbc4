"""Schedulers as those of a vLLM that keeps its list of draft lengths under another name."""

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from completion_server.engine.vllm import schedulers as vllm_speculation


class _Renamed(Scheduler):
    """Has the list under the name that vLLM knows only while vLLM plans a step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._renamed = self.__dict__.pop("dynamic_sd_lookup")

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self.dynamic_sd_lookup = self._renamed
        try:
            return super().schedule(*args, **kwargs)
        finally:
            del self.dynamic_sd_lookup


class LiveScheduler(vllm_speculation.LiveScheduler, _Renamed):
    """Ours, on top of such a one."""


class LiveAsyncScheduler(vllm_speculation.LiveAsyncScheduler, _Renamed):
    """The same, planning ahead."""
