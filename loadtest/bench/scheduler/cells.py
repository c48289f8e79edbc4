"""The traces of a benchmark over several loads, with prompts for targets that receive token ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.bench.common.server import render_prompts
from loadtest.bench.common.texts import CursorText
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import Trace, make_trace


@dataclass(frozen=True, slots=True)
class Cell:
    """A trace that every target is driven with."""

    round: int
    load: float
    """Load as a multiple of the engine's capacity."""
    trace: Trace


def make_cells(
    num_rounds: int, loads: Sequence[float], seconds: float, scenario: Scenario, completions_per_s: float
) -> list[Cell]:
    """Make a trace for each round and load, with the number of sessions that is nearest to the load.

    Raises:
        DocumentsError: there is not enough source text.

    """
    return [
        Cell(number, load, make_trace(scenario.scaled(sessions=sessions, duration_s=seconds, seed=name)))
        for number in range(num_rounds)
        for load in loads
        for sessions in (scenario.num_sessions(load * completions_per_s),)
        for name in (f"{scenario.seed}/{number}/{load:g}",)
    ]


@dataclass(frozen=True, slots=True)
class RenderedTraces:
    """Traces with prompts."""

    traces: list[Trace]
    stop_token_ids: tuple[int, ...]
    """Tokens that end a completion besides the model's own end token."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """Adds the server's prompt token ids to traces."""

    config: Path
    overrides: Sequence[str]
    max_tokens: int

    def render(self, traces: Sequence[Trace]) -> RenderedTraces:
        """Return the traces with prompts. The prompt of each key depends on the document's last one.

        Raises:
            CommandError: a prompt can't be made.

        """
        documents = [each for trace in traces for each in trace.documents()]
        texts = [CursorText(request.prefix, request.suffix) for _name, request in documents]
        names = [name for name, _request in documents]
        prompts = render_prompts(self.config, self.overrides, texts, self.max_tokens, names)
        token_ids = (prompt.token_ids for prompt in prompts)
        return RenderedTraces([trace.with_token_ids(token_ids) for trace in traces], prompts[0].stop_token_ids)

    def render_cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells with prompts. Raises the same errors as `render`."""
        traces = self.render([cell.trace for cell in cells]).traces
        return [replace(cell, trace=trace) for cell, trace in zip(cells, traces, strict=True)]
