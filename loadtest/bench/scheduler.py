"""Measures seen completions under open-loop typing: this server, the same without its policies, and `vllm serve`.

The targets run the same model with the same engine arguments and take turns on the same traces. `vllm serve` gets the
server's token ids over HTTP; its editors close the connection at the user's next key. A completion is seen when its
first visible text comes within 250 ms of its intended time and stands for 200 ms before the next key, which the trace
knows. Loads are multiples of the engine's capacity, measured first on the plain server: whole completions a second,
closed loop. A target sees each document once before a trace begins.

Wasted tokens are vLLM's count of generated tokens less those of seen answers. The count leaves out the tokens that a
step in flight computes for a request just aborted, for all targets.
"""

import asyncio
import gc
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.progress import Progress

from loadtest.bench.peers import VllmServe
from loadtest.bench.runner.benchmark import COUNT, POSITIVE, ServerOptions, benchmark, option, percentile, share
from loadtest.bench.runner.contest import Contest, EditingContestant, rotated
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess, ServerPrompts, effective_config, server_contestant
from loadtest.driving.driver import Run
from loadtest.targets import ClientSettings, TargetError
from loadtest.targets.record import Outcome, Result
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace
from loadtest.tuning.replay import Replay, traffic_of

SCHEDULER, PLAIN, VLLM_SERVE = "scheduler", "plain", VllmServe.name
"""The targets."""
CONCURRENCIES = (4, 8, 16)
"""Callers while the capacity of the engine is measured."""
_WITHIN_S, _BEFORE_NEXT_KEY_S = 0.25, 0.2
_PLAIN_OVERRIDES = (
    *SERVES_ALL,
    "scheduling.supersede=false",
    "scheduling.order=first_come",
    "scheduling.typing_through=false",
)
"""Overrides that turn the server's policies off."""
_WARM_UP_SESSIONS, _WARM_UP_S = 8, 3.0
_CAPACITY_S = {False: 8.0, True: 2.0}
"""By whether the run is quick."""
_DOCUMENTS = {"prefix_chars": 1500, "suffix_chars": 400}
_HEADLINE_LOAD, _TOP_LOAD = 2.0, 4.0
Results = dict[float, dict[str, list[Run]]]
"""Runs by load, as a multiple of the capacity, and target; the same place in two lists is the same trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    seconds: float = option(15.0, "Of typing in each trace.", click.FloatRange(2), quick=4.0)
    rounds: int = option(2, "Traces at each load.", COUNT, quick=1)
    loads: tuple[float, ...] = option(
        (0.5, 1.0, 2.0, 4.0), "A multiple of the capacity. May be repeated.", POSITIVE, "--load"
    )
    with_vllm_serve: bool = option(True, "Whether it takes part.", None, "--vllm-serve/--no-vllm-serve")
    max_tokens: int = option(24, "", COUNT)
    seed: int = option(0, "Who types what and when.", int)


class _Cell(NamedTuple):
    """A trace that every target is driven with, at a load that is a multiple of the engine's capacity."""

    round: int
    load: float
    trace: Trace


@benchmark(_Options)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure seen completions at several loads. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.scheduler --config deploy/local/server.toml --quick
        python -m loadtest.bench.scheduler --load 2 --rounds 4
    """
    tree = {"name": "scheduler", "documents": _DOCUMENTS, "editor": {"max_tokens": options.max_tokens}}
    by_concurrency, results = asyncio.run(_measure(Scenario.of(tree | {"seed": options.seed}), options, console))
    capacity = {
        "capacity_per_s": max(by_concurrency.values()),
        "capacity_per_s_by_concurrency": by_concurrency,
    }
    return figures(results, console) | capacity


async def _measure(scenario: Scenario, options: _Options, console: Console) -> tuple[Mapping[int, float], Results]:
    """Return the engine's capacity by concurrency, and the runs."""
    async with Contest(console) as contest:
        contestants: list[EditingContestant] = []
        for name, own in ((SCHEDULER, ()), (PLAIN, _PLAIN_OVERRIDES)):
            overrides = (*options.overrides, *own)
            server = await contest.start(name, ServerProcess, options.config, overrides, name, has_metrics=True)
            settings = ClientSettings(options.max_tokens, cancels_at_key=name == SCHEDULER)
            contestants.append(server_contestant(server, settings))
        if options.with_vllm_serve:
            effective = effective_config(options.config, options.overrides)
            serve = await contest.start(VLLM_SERVE, VllmServe, effective)
            settings = ClientSettings(options.max_tokens)
            contestants.append(serve.contestant(VLLM_SERVE, ServerPrompts(effective), settings, counts_tokens=True))
        first = scenario.scaled(sessions=_WARM_UP_SESSIONS, duration_s=_WARM_UP_S, seed=f"{options.seed}/warm-up")
        with console.status("warming up"):
            for each in contestants:
                await contest.drive(each, each.sends(make_trace(first)))
        with console.status("measuring what the engine can serve"):
            await contest.give_turn(server.process)
            by_concurrency = await measure_capacity(server.ready["address"], scenario, _CAPACITY_S[options.quick])
        cells = await asyncio.to_thread(_cells, scenario, max(by_concurrency.values()), options)
        return by_concurrency, await _drive(contest, contestants, cells)


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
            whole = [each.ended_at_s for each in block.answers if each.outcome is not Outcome.SHED]
            found[concurrency] = sum(at_s is not None and at_s <= block.window_s for at_s in whole) / block.window_s
    finally:
        await replay.close()
    if not any(found.values()):
        raise TargetError(f"{address} answered nothing while its capacity was measured")
    return found


def _cells(scenario: Scenario, rate: float, options: _Options) -> list[_Cell]:
    """Make a trace for each round and load, with the number of sessions that is nearest to the load."""
    cells = []
    for number in range(options.rounds):
        for load in options.loads:
            sessions, seed = scenario.num_sessions(load * rate), f"{scenario.seed}/{number}/{load:g}"
            trace = make_trace(scenario.scaled(sessions=sessions, duration_s=options.seconds, seed=seed))
            cells.append(_Cell(number, load, trace))
    return cells


async def _drive(contest: Contest, contestants: Sequence[EditingContestant], cells: Sequence[_Cell]) -> Results:
    results: Results = {cell.load: {each.name: [] for each in contestants} for cell in cells}
    sent = [(cell, [(each, each.sends(cell.trace)) for each in contestants]) for cell in cells]
    gc.collect()
    gc.freeze()  # garbage collections of the prepared traces would delay the generator
    with Progress(console=contest.console) as progress:
        for number, (cell, pairs) in enumerate(progress.track(sent, description="typing")):
            for each, trace in rotated(pairs, cell.round + number):
                results[cell.load][each.name].append(await contest.drive(each, trace))
    return results


def is_in_time(result: Result) -> bool:
    """Return whether the first visible text came in time, counted from the intended time."""
    return result.ttft_s is not None and result.ttft_s <= _WITHIN_S


def is_seen(result: Result) -> bool:
    """Return whether the user saw the completion: in time, and for long enough before the next key."""
    text_at_s = result.first_text_at_s
    if text_at_s is None or not is_in_time(result):
        return False
    return result.request.next_key_at_s - text_at_s >= _BEFORE_NEXT_KEY_S


def load_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of one target at one load, from one or more runs; nan for missing data.

    Times count from the intended time. Requests without visible text are in no percentile. `wasted_token_share` is of
    generated tokens that belong to no seen completion.
    """
    results = [result for run in runs for result in run.results]
    pauses = [result for result in results if result.request.is_pause]
    seen = [result for result in results if is_seen(result)]
    duration_s, generated = sum(run.duration_s for run in runs), sum(run.generated_tokens for run in runs)
    outcomes = Counter(result.outcome for result in results)
    pause_ttft_ms = _ttft_ms(pauses)
    return {
        "num_requests": len(results),
        "num_pauses": len(pauses),
        "num_seen": len(seen),
        "offered_per_s": len(results) / duration_s,
        "seen_per_s": len(seen) / duration_s,
        "pause_answered_share": share(sum(map(is_in_time, pauses)), len(pauses)),
        **{f"pause_ttft_ms_p{percent}": percentile(pause_ttft_ms, percent) for percent in (50, 95, 99)},
        "answered_ttft_ms_p95": percentile(_ttft_ms(results), 95),
        "wasted_token_share": 1 - share(sum(each.completion_tokens for each in seen), generated),
        "generated_tokens": generated,
        "outcomes": {kind.value: outcomes[kind] for kind in Outcome if outcomes[kind]},
    }


def _ttft_ms(results: Sequence[Result]) -> list[float]:
    return [result.ttft_s * 1000 for result in results if result.ttft_s is not None]


def figures(results: Results, console: Console) -> dict[str, Any]:
    """Return the headline figures and those of each load; nan for a load that was not run, or a ratio to 0.

    The first error of each target is printed.
    """
    loads = {load: {name: load_figures(runs) for name, runs in own.items()} for load, own in results.items()}
    by_name = [(name, run) for own in results.values() for name, runs in own.items() for run in runs]
    everything = [(name, each) for name, run in by_name for each in run.results]
    errors = {name: each.error for name, each in reversed(everything) if each.outcome is Outcome.ERROR}
    for name, error in errors.items():
        console.print(f"{name}: requests failed, the first with: {error or 'no message'}", markup=False)

    def at(load: float, target: str = SCHEDULER, name: str = "seen_per_s") -> float:
        value: float = loads.get(load, {}).get(target, {}).get(name, math.nan)
        return value

    peak = max((at(load) for load in loads), default=math.nan)
    return {
        "seen_ratio_2x_to_plain": share(at(_HEADLINE_LOAD), at(_HEADLINE_LOAD, PLAIN)),
        "seen_ratio_2x_to_vllm_serve": share(at(_HEADLINE_LOAD), at(_HEADLINE_LOAD, VLLM_SERVE)),
        "seen_4x_to_peak": share(at(_TOP_LOAD), peak),
        "answered_ttft_p95_ms_2x": at(_HEADLINE_LOAD, name="answered_ttft_ms_p95"),
        "pause_answered_share_2x": at(_HEADLINE_LOAD, name="pause_answered_share"),
        "wasted_token_share_2x": at(_HEADLINE_LOAD, name="wasted_token_share"),
        "generator_lag_p99_ms": percentile([each.lag_s * 1000 for _, each in everything], 99),
        "loads": {f"{load:g}": by_target for load, by_target in loads.items()},
    }


if __name__ == "__main__":
    main()
