"""Schedulers of a vLLM that keeps its lookup of K under another name."""

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from completion_server.engine.vllm.drafts import schedulers


class _Renamed(Scheduler):
    """Has the lookup under vLLM's name only while vLLM plans a step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._renamed = self.__dict__.pop("dynamic_sd_lookup")

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self.dynamic_sd_lookup = self._renamed
        try:
            return super().schedule(*args, **kwargs)
        finally:
            del self.dynamic_sd_lookup


class LookupScheduler(schedulers.LookupScheduler, _Renamed):
    """The server's scheduler on top of the renamed one."""


class LookupAsyncScheduler(schedulers.LookupAsyncScheduler, _Renamed):
    """The same, with asynchronous scheduling."""
