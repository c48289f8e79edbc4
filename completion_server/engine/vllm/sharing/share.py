"""What a front end needs to attach to a vLLM engine. Imports nothing of vLLM: a front end prepares for it first."""

from dataclasses import dataclass
from pathlib import Path

from completion_server.engine.interface import EngineShare


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
