"""Plans the turns of a run's targets, and joins the statistics of each target's turns. Pure."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.stats.run_stats import RunStats
from loadtest.targets import TargetSpec
from loadtest.traffic.scenario import Scenario


class BlocksError(Exception):
    """A scenario can't be divided into blocks; the message says why."""


@dataclass(frozen=True, slots=True)
class TargetTurn:
    """One target's turn in a run."""

    number: int
    num_turns: int
    scenario: Scenario
    spec: TargetSpec


def plan(scenario: Scenario, specs: Sequence[TargetSpec], num_blocks: int) -> Iterator[TargetTurn]:
    """Yield the turns of a run. With one block each target has a whole run, one after another.

    With more, the run is divided into blocks, each with its own traffic. In each block the targets take turns, in an
    order that rotates, so that a drift of the machine affects all of them.

    Raises:
        BlocksError: the scenario has something that only a whole run shows.

    """
    if num_blocks > 1:
        _check(scenario, num_blocks)
    for block in range(num_blocks):
        stretch = _stretch(scenario, block, num_blocks)
        first = block % len(specs)
        for place, spec in enumerate((*specs[first:], *specs[:first])):
            yield TargetTurn(block * len(specs) + place, num_blocks * len(specs), stretch, spec)


def join(whole: RunStats | None, block: RunStats) -> RunStats:
    """Append the statistics of a target's next block to those of its earlier blocks."""
    if whole is None:
        return block
    offset = math.ceil(whole.duration_s / whole.slice_s - 1e-9)
    sessions = whole.total.counters["sessions"]
    whole.total.add(block.total)
    whole.total.counters["sessions"] = max(sessions, block.total.counters["sessions"])  # the same ones
    for place, each in enumerate(block.slices):
        whole.slice_at((offset + place + 0.5) * whole.slice_s).add(each)
    whole.duration_s += block.duration_s
    whole.workers &= block.workers
    return whole


def _check(scenario: Scenario, num_blocks: int) -> None:
    faults = (
        (scenario.events, "has events"),
        (scenario.shape.kind != "steady", f"has the shape {scenario.shape.kind}"),
        (scenario.recorded is not None, "is recorded"),
        (scenario.duration_s / num_blocks < scenario.slice_s, f"is too short for {num_blocks} blocks"),
    )
    for is_fault, why in faults:
        if is_fault:
            msg = f"scenario {scenario.name} {why}, so it can't be cut into blocks: let targets run --in-turn"
            raise BlocksError(msg)


def _stretch(scenario: Scenario, block: int, num_blocks: int) -> Scenario:
    if num_blocks == 1:
        return scenario
    seed = hashlib.sha256(f"{scenario.seed}/{block}".encode()).hexdigest()[:12]
    slices = round(scenario.duration_s / num_blocks / scenario.slice_s)
    return scenario.scaled(duration_s=max(1, slices) * scenario.slice_s, seed=seed)
