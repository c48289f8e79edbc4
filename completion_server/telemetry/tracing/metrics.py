"""Metrics of the traces themselves."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class TraceMetrics:
    """Counts traces and spans. May be used from several threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        traced = "Requests that were traced: sampled when they were received, or missed their budget."
        self._requests = Counter("completion_traced_requests", traced, ["sampled"], registry=registry)
        left_out = "Requests that were not traced because of a limit: caller_sampled_per_s or missed_budget_per_s."
        self._left_out = Counter("completion_untraced_requests", left_out, ["limit"], registry=registry)
        spans = "Spans: exported, failed (the collector did not take them) or dropped (the queue was full)."
        self._spans = Counter("completion_trace_spans", spans, ["result"], registry=registry)
        reached = "Whether the collector took the last export; 1 before the first one."
        self._is_reached = Gauge("completion_trace_collector_reached", reached, registry=registry)
        self._is_reached.set(1)
        self._of_result = {name: self._spans.labels(name) for name in ("exported", "failed", "dropped")}
        self._of_reason = {name: self._requests.labels(name) for name in ("head", "missed_budget")}
        self._of_limit = {name: self._left_out.labels(name) for name in ("caller", "missed_budget")}

    def traced(self, *, is_sampled: bool) -> None:
        """Count a request."""
        self._of_reason["head" if is_sampled else "missed_budget"].inc()

    def caller_limited(self) -> None:
        """Count a request that was not traced for its caller."""
        self._of_limit["caller"].inc()

    def missed_limited(self) -> None:
        """Count a request that missed its budget and was left out."""
        self._of_limit["missed_budget"].inc()

    def exported(self, num_spans: int, *, is_reached: bool) -> None:
        """Count the spans of one export."""
        self._of_result["exported" if is_reached else "failed"].inc(num_spans)
        self._is_reached.set(is_reached)

    def dropped(self, num_spans: int) -> None:
        """Count spans for which the queue had no place."""
        self._of_result["dropped"].inc(num_spans)
