"""What the server keeps of vLLM's statistics."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from completion_server.engine.vllm.token_accounting import StepMeter


class LastStatistics(StatLoggerBase):
    """Keeps the scheduler's last statistics. vLLM calls it after each step that changed them."""

    def __init__(self, meter: StepMeter) -> None:
        """End each step of `meter`."""
        self._meter = meter
        self.num_running = 0
        self.num_waiting = 0
        self.kv_usage = 0.0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        """Take the statistics of a step; None if vLLM has none of the scheduler."""
        if scheduler_stats is not None:
            self.num_running = scheduler_stats.num_running_reqs
            self.num_waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            self._meter.end(scheduler_stats.spec_decoding_stats, self.num_running)

    def log_engine_initialized(self) -> None:
        """Log nothing."""
