"""What a front end needs to attach to a vLLM engine, and which engines have none.

Imports nothing of vLLM: a front end prepares for it first.
"""

from dataclasses import dataclass
from pathlib import Path

from completion_server.engine.interface import EngineShare
from completion_server.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class VllmShare(EngineShare):
    """The share of a vLLM engine."""

    config: bytes
    """vLLM's configuration, pickled before the core started: each client completes it from what the core says."""
    addresses: tuple[dict[str, str], ...]
    """vLLM's addresses of the core's sockets, by client."""
    board: Path
    """The file of the `EngineBoard`."""
    lookup: Path | None
    """The file of the `SharedLookup` of K; None if K is locked."""
    has_spans: bool
    """Whether vLLM makes spans."""


def unshared_reason(settings: EngineSettings) -> str:
    """Return why an engine of these settings can't be shared; "" if it can."""
    if settings.vllm.get("scheduler_cls"):
        return "engine.vllm.scheduler_cls names another scheduler"
    if int(settings.vllm.get("data_parallel_size") or 1) > 1:
        return "engine.vllm.data_parallel_size is above 1"
    return ""
