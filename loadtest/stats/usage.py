"""CPU time and memory of a process."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU and memory that a process and its children used during a run."""

    cpu_cores: float
    """CPU seconds per second."""
    peak_rss_bytes: int
