"""Measures seen completions under open-loop typing: this server, the same without its policies, and `vllm serve`.

Three targets run the same model with the same engine arguments and take turns on the same traces, in one run:

- the scheduler: the configured server. Editors keep a `Session` stream and cancel a request at the key that makes it
  stale. With `--no-cancel-at-key` they only send the next request, a debounce later.
- plain: the same server with superseding, typing through, shedding, the adaptive number of slots and the limit for each
  user off, first come first served. Editors only send their next request.
- `vllm serve`, over HTTP with the server's token ids and end tokens. Editors close the connection at the user's next
  key. It has no text rules: an answer runs to its last token, or to the next key.

The rules of the comparison:

- Requests are sent at predetermined times, regardless of the earlier ones; latencies count from those times.
- The user's next key, which the trace knows, decides the value of an answer: a completion is seen when its first
  visible text comes in time and stands for a while before that key.
- Loads are multiples of the engine's capacity, which is measured first on the plain server: whole completions per
  second, closed loop, on growing prefixes, so that the prefix cache works as while typing.
- Each round and load has its own trace, the same for all targets, which take turns in changing order; the servers of
  the others are suspended meanwhile. A target sees
  each document once before a trace begins, so that a trace shows typing and not the opening of all documents at once.
- Wasted tokens are vLLM's count of generated tokens less those of seen answers. The count leaves out the tokens that a
  step in flight computes for a request just aborted, for all targets. When a newer request reattaches to a generation,
  the tokens count for the newer one only.

Client, servers and engines share the machine; the report includes the generator's lag.
"""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import click
from rich.console import Console, RenderableType
from rich.progress import Progress

from loadtest.bench.peers.vllm_serve import VllmServe, vllm_contestant
from loadtest.bench.runner.benchmark import POSITIVE, Result, ServerOptions, benchmark, option
from loadtest.bench.runner.editing import EditingContestant, EditingRuns, ServerPrompts, server_contestant
from loadtest.bench.runner.schedule import Contest, rotated
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess, effective_config
from loadtest.bench.scheduler.report import (
    PLAIN,
    SCHEDULER,
    VLLM_SERVE,
    Results,
    as_json,
    figures,
    first_errors,
    headline,
    tables,
)
from loadtest.targets import ClientSettings, TargetError
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.sections import CriteriaSettings
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace
from loadtest.tuning.replay import Replay, traffic_of

_PLAIN_OVERRIDES = (
    *SERVES_ALL,
    "scheduling.supersede=false",
    "scheduling.order=first_come",
    "scheduling.typing_through=false",
)
"""Overrides that turn the server's policies off."""
_CAPACITY_S = 8.0
_WARM_UP_SESSIONS, _WARM_UP_S = 8, 3.0
_QUICK_S, _QUICK_CAPACITY_S = 4.0, 2.0
CONCURRENCIES = (4, 8, 16)
"""Callers while the capacity of the engine is measured."""
_TARGETS = {name.replace(" ", "-"): name for name in (SCHEDULER, PLAIN, VLLM_SERVE)}
"""The targets by their names on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    seconds: float = option(15.0, "Length of a trace.", click.FloatRange(1))
    rounds: int = option(2, "Traces for each load.", click.IntRange(1))
    loads: tuple[float, ...] = option(
        (0.5, 1.0, 2.0, 4.0),
        "Requests/s asked for, as a multiple of the completions/s that the engine can serve; may be repeated.",
        POSITIVE,
        "--load",
    )
    capacity: float | None = option(None, "Completions/s; not given, it is measured.", POSITIVE)
    targets: tuple[str, ...] = option(
        tuple(_TARGETS),
        f"Which targets take part; may be repeated. Without {PLAIN} there must be a --capacity.",
        click.Choice(list(_TARGETS)),
        "--target",
        callback=lambda _context, _parameter, names: tuple(_TARGETS[name] for name in names),
    )
    max_tokens: int = option(24, "", click.IntRange(1))
    prefix_chars: int = option(1500, "", click.IntRange(100))
    suffix_chars: int = option(400, "", click.IntRange(1))
    within_ms: float = option(250.0, "The latest that text is in time.", click.FloatRange(1))
    before_next_key_ms: float = option(
        200.0, "How long text must stand before the next key to be seen.", click.FloatRange(0)
    )
    seed: int = option(0, "Who types what and when.", int)
    cancel_at_key: bool = option(
        True, "Whether the scheduler's editors cancel at the key.", None, "--cancel-at-key/--no-cancel-at-key"
    )
    has_lead_in: bool = option(True, "Whether documents are known beforehand.", None, "--lead-in/--no-lead-in")
    quick: bool = option(False, "One short round, to see that all of it works.")


class Cell(NamedTuple):
    """A trace that every target is driven with."""

    round: int
    load: float
    """Load as a multiple of the engine's capacity."""
    trace: Trace


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Measure seen completions at several loads. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.scheduler --config deploy/local/server.toml --quick
        python -m loadtest.bench.scheduler --load 2 --rounds 4
    """
    if PLAIN not in options.targets and options.capacity is None:
        msg = f"the capacity is measured on target {PLAIN!r}: add it, or give --capacity"
        raise click.BadParameter(msg, param_hint="--target")
    if options.quick:
        options = replace(options, seconds=_QUICK_S, rounds=1)
    documents = {"prefix_chars": options.prefix_chars, "suffix_chars": options.suffix_chars}
    editor = {"max_tokens": options.max_tokens}
    scenario = Scenario.of({"name": "scheduler", "seed": options.seed, "documents": documents, "editor": editor})
    by_concurrency, cells, results = asyncio.run(_measure(scenario, options, console))
    rate = options.capacity or max(by_concurrency.values())
    criteria = CriteriaSettings(within_ms=options.within_ms, before_next_key_ms=options.before_next_key_ms)
    found = figures(results, criteria)
    for name, error in first_errors(results).items():
        console.print(f"{name}: requests failed, the first with: {error}", markup=False)
    headlines = headline(found, results)
    left_out = {"as_json_only", "record", "config", "overrides", "quick"}
    details = {
        "capacity_per_s": rate,
        "capacity_per_s_by_concurrency": by_concurrency,
        "requests_per_s_of_a_session": scenario.session_requests_per_s,
        "typing": scenario.typing.model.parameters(),
        "options": {name: value for name, value in asdict(options).items() if name not in left_out},
        "traces": [
            {
                "round": cell.round,
                "load": cell.load,
                "sessions": len(cell.trace.sessions),
                "requests": cell.trace.num_requests,
                "digest": cell.trace.digest(),
            }
            for cell in cells
        ],
    }
    said: list[RenderableType] = [f"The engine can serve {rate:.1f} completions/s.", *tables(found, headlines)]
    return Result(headlines | details | {"loads": as_json(found)}, said)


async def _measure(
    scenario: Scenario, options: _Options, console: Console
) -> tuple[Mapping[int, float], Sequence[Cell], Results]:
    """Return the engine's capacity by concurrency, if it is measured, the traces, and the runs."""
    by_concurrency: dict[int, float] = {}
    async with Contest(console) as contest:
        contestants: dict[str, EditingContestant] = {}
        servers: dict[str, ServerProcess] = {}
        for name, own in ((SCHEDULER, ()), (PLAIN, _PLAIN_OVERRIDES)):
            if name in options.targets:
                overrides = (*options.overrides, *own)
                server = await contest.start(name, ServerProcess, options.config, overrides, name, has_metrics=True)
                cancels = options.cancel_at_key and name == SCHEDULER
                settings = ClientSettings(options.max_tokens, cancels_at_key=cancels)
                servers[name], contestants[name] = server, server_contestant(server, settings)
        if VLLM_SERVE in options.targets:
            effective = effective_config(options.config, options.overrides)
            serve = await contest.start(VLLM_SERVE, VllmServe, effective)
            contestants[VLLM_SERVE] = vllm_contestant(
                VLLM_SERVE, serve, ServerPrompts(effective), ClientSettings(options.max_tokens), counts_tokens=True
            )
        runs = EditingRuns(contest)
        first = scenario.scaled(sessions=_WARM_UP_SESSIONS, duration_s=_WARM_UP_S, seed=f"{options.seed}/warm-up")
        with console.status("warming up"):
            for each in contestants.values():
                await runs.drive(each, each.sends(make_trace(first)))
        if options.capacity is None:
            with console.status("measuring what the engine can serve"):
                await contest.give_turn(servers[PLAIN].process)
                seconds = _QUICK_CAPACITY_S if options.quick else _CAPACITY_S
                by_concurrency = await measure_capacity(servers[PLAIN].ready["address"], scenario, seconds)
        cells = await asyncio.to_thread(_cells, scenario, options.capacity or max(by_concurrency.values()), options)
        return by_concurrency, cells, await _contest(list(contestants.values()), runs, cells, options, console)


async def measure_capacity(address: str, scenario: Scenario, seconds: float) -> dict[int, float]:
    """Return the whole completions per second of a server at HOST:PORT, closed loop, by concurrency.

    Each caller types in its own document and sends the next key's request as soon as it has its answer, so that the
    prefix cache works as while typing. Raises TargetError if a request failed, or none was answered.
    """
    replay = Replay(address, scenario)
    found: dict[int, float] = {}
    try:
        for concurrency in CONCURRENCIES:
            block = await replay.run(await traffic_of(scenario, concurrency, f"capacity/{concurrency}"), seconds)
            answers = [each for each in block.answers if each.shed_reason is None and each.ended_s <= block.window_s]
            found[concurrency] = len(answers) / block.window_s
    finally:
        await replay.close()
    if not any(found.values()):
        raise TargetError(f"{address} answered nothing while its capacity was measured")
    return found


def _cells(scenario: Scenario, rate: float, options: _Options) -> list[Cell]:
    """Make a trace for each round and load, with the number of sessions that is nearest to the load."""
    cells = []
    for number in range(options.rounds):
        for load in options.loads:
            sessions, seed = scenario.num_sessions(load * rate), f"{scenario.seed}/{number}/{load:g}"
            trace = make_trace(scenario.scaled(sessions=sessions, duration_s=options.seconds, seed=seed))
            cells.append(Cell(number, load, trace))
    return cells


async def _contest(
    contestants: Sequence[EditingContestant],
    runs: EditingRuns,
    cells: Sequence[Cell],
    options: _Options,
    console: Console,
) -> Results:
    results: Results = {load: {each.name: [] for each in contestants} for load in options.loads}
    sent = [[each.sends(cell.trace) for each in contestants] for cell in cells]
    gc.collect()
    gc.freeze()  # garbage collections of the prepared traces would delay the generator
    with Progress(console=console) as progress:
        in_progress = progress.track(list(zip(cells, sent, strict=True)), description="typing")
        for number, (cell, traces) in enumerate(in_progress):
            for each, trace in rotated(list(zip(contestants, traces, strict=True)), cell.round + number):
                run = await runs.drive(each, trace, has_lead_in=options.has_lead_in)
                results[cell.load][each.name].append(run)
    return results


if __name__ == "__main__":
    main()
