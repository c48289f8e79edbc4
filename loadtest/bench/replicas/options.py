"""The options of the benchmark of replicas, which every part gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from loadtest.bench.runner.benchmark import EXISTING_FILE, ServerOptions, option

Figures = Mapping[str, float | None]
PARTS = ("routing", "supersede", "cache", "lookup", "outage", "rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ServerOptions):
    """The options of a run."""

    part: tuple[str, ...] = option((), "May be repeated.  [all]", click.Choice(PARTS))
    rounds: int = option(4, "Turns of each site.", click.IntRange(1))
    seconds: float = option(20.0, "Length of a turn.", click.FloatRange(5))
    users: int = option(48, "Users who type.", click.IntRange(3))
    requests_per_s: float = option(40.0, "Asked by all of them together.", click.FloatRange(1))
    kv_blocks: int = option(3000, "KV cache of each of three replicas, in blocks of 16 tokens.", click.IntRange(16))
    seed: int = option(0, "Who types what and when.", int)
    recorded: Path | None = option(
        None,
        "A recorded trace as a second workload of the part cache, in the form of the Azure traces of LLM inference.",
        EXISTING_FILE,
    )
