"""Schedulers as those of a vLLM in which the list of draft lengths has another name."""

from typing import Any

from completion_server.engine import vllm_speculation
from completion_server.engine.speculation_table import join_table


class LiveScheduler(vllm_speculation.LiveScheduler):
    """Finds no list that it knows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = join_table(self.scheduler_config.max_num_seqs, can_follow=False)


class LiveAsyncScheduler(LiveScheduler, vllm_speculation.LiveAsyncScheduler):
    """The same, planning ahead."""
