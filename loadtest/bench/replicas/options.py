"""The options of a run, which every part gets, and what a part is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    config: Path
    overrides: Sequence[str]
    rounds: int
    seconds: float
    """Length of a turn of one target."""
    users: int
    requests_per_s: float
    """Asked by all users together."""
    kv_blocks: int
    """Blocks of 16 tokens in the KV cache of each of three replicas; a single replica has three times as many."""
    seed: int
    recorded: Path | None
    """A recorded trace for the part `cache`, in the form of the Azure traces of LLM inference."""
    console: Console
    """For progress: standard error."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark: starts what it needs, measures, stops it, and returns its figures."""

    name: str
    measure: Callable[[Options], Figures]
    """Raises StartError, RunError, TargetError, CheckError, MetricsError or EnvoyMissingError."""
