"""Measures the gain of speculation with the configured drafts for each K, and that of a tuned table, in one run.

Two servers run: one with drafts and a K that changes live, K = 0 included, and one started without. They take turns on
the same texts, so that a drift of the machine affects both; the other is suspended meanwhile. Then K is changed
repeatedly under traffic, to measure the time that a change takes.
"""

import asyncio
import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.bench.runner.benchmark import FOLDER, Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import report_console, rounded
from loadtest.bench.runner.schedule import Contest
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from loadtest.bench.speculation.live_change import Changes, measure_changes
from loadtest.commands.tune import Bar, numbers, print_tuning
from loadtest.targets.speculation import Operator
from loadtest.traffic.scenario import Scenario
from loadtest.tuning.blocks import Blocks, Variant
from loadtest.tuning.choice import MIN_ROUNDS, OFF, as_variant, crossover, goodput_ratio
from loadtest.tuning.replay import Replay, traffic_of
from loadtest.tuning.report import as_json, render_tuning
from loadtest.tuning.tuner import Tuned, Tuner, TuningError, TuningProgress, TuningSettings

MAX_K = 8
NO_DRAFT = Variant("no draft")

_MOST_AT_ONCE = 64
_OVERRIDES = (
    *SERVES_ALL,
    "shed.lag_ms=0",
    f"engine.max_num_seqs={_MOST_AT_ONCE}",
    f"scheduling.max_slots={_MOST_AT_ONCE}",
)
_CHANGES_AT, _CHANGES_K = 4, 4
"""Concurrent generations, and K, while the time of a change is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    rounds: int = option(4, "Blocks of each kind.", click.IntRange(MIN_ROUNDS))
    seconds: float = option(0.6, "Of a block, at the least.", click.FloatRange(0.2))
    changes: int = option(100, "Of K, under traffic.", click.IntRange(1))
    seed: int = option(0, "Which texts are completed, and in which order.", int)
    k: str | None = option(None, f"Values of K to try beside 0.  [default: 1 to {MAX_K}]", metavar="N,N,...")
    out: Path = option(Path("work/speculation"), "A folder for tuning.json and tuning.html.", FOLDER)
    quick: bool = option(False, "A few short blocks, to see that all of it works.")


@benchmark(_Options, TuningError)
def main(options: _Options, console: Console) -> Result:
    """Measure the gain of speculation at K = 0 to 8 and 1 to 64 at once. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.speculation
        python -m loadtest.bench.speculation --quick
        python -m loadtest.bench.speculation --set engine.draft_model=draft_model/embedded --k 1,2,4
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    settings = tuning_settings(options.k, options.rounds, options.seconds, is_quick=options.quick)
    if options.quick:
        options = replace(options, changes=min(10, options.changes))
    tuned, changes = asyncio.run(_measure(settings, options, console))
    found = {name: rounded(value) for name, value in (figures(tuned) | changes.figures()).items()}
    about = {
        "version": version("completion-server"),
        "started_at": started_at,
        "scenario": "steady",
        "seed": options.seed,
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "ks": list(settings.ks or range(1, MAX_K + 1)),
    }
    _write(options.out, tuned, about, found)
    if not options.as_json_only:
        print_tuning(tuned, report_console())
    return Result(found | {"table": tuned.table, "recommended": tuned.recommended})


def tuning_settings(k: str | None, rounds: int, seconds: float, *, is_quick: bool) -> TuningSettings:
    """Return the extent of the measurement; that of a quick one is fixed, except for the Ks.

    Raises:
        TuningError: the Ks are not numbers, or too large for the servers.

    """
    ks = numbers("--k", k, least=1)
    if ks and ks[-1] > MAX_K:
        msg = f"--k: must be at most {MAX_K}, got {ks[-1]}"
        raise TuningError(msg)
    if is_quick:
        return TuningSettings((1, 4), MIN_ROUNDS, MIN_ROUNDS, 0.3, ks or (1, 4))
    return TuningSettings((1, 4, 16, _MOST_AT_ONCE), rounds, rounds, seconds, ks)


def figures(tuned: Tuned) -> dict[str, float]:
    """Return the figures of the last line; nan for missing ones."""
    first, over = tuned.choices[0], tuned.verification
    both = Blocks((*tuned.sweep.all, *tuned.others.all))
    checked = tuned.checks if tuned.checks.all else both
    where = crossover(tuned.table)
    return {
        "best_k_batch_1": first.k,
        "best_k_above_0_batch_1": first.best_k,
        "speedup_batch_1": first.gain.value,
        **over_no_draft(both, tuned),
        "crossover_batch": math.nan if where is None else where,
        "tuned_over_best_fixed": over.table_over_fixed.value,
        "tuned_over_best_fixed_low": over.table_over_fixed.low,
        "tuned_over_best_fixed_high": over.table_over_fixed.high,
        "best_fixed_k": over.best_fixed.k or 0,
        "tuned_over_off": over.table_over_off.value,
        "tuned_over_off_low": over.table_over_off.low,
        "tuned_over_off_high": over.table_over_off.high,
        "tuned_over_no_draft": goodput_ratio(checked, as_variant(tuned.table), NO_DRAFT).value,
    }


def over_no_draft(blocks: Blocks, tuned: Tuned) -> dict[str, float]:
    """Return the tokens/s of K = 0, and of the best K above 0, relative to the server without drafts."""
    found: dict[str, float] = {}
    for choice in tuned.choices:
        at = choice.concurrency
        for name, variant in (("off", OFF), ("speedup", Variant.fixed(choice.best_k))):
            found[f"{name}_over_no_draft_batch_{at}"] = goodput_ratio(
                blocks, variant, NO_DRAFT, concurrencies=[at]
            ).value
    return found


async def _measure(settings: TuningSettings, options: _Options, console: Console) -> tuple[Tuned, Changes]:
    scenario = Scenario.load("steady").scaled(seed=options.seed)
    async with Contest(console) as contest:
        servers: dict[Replay, ServerProcess] = {}
        replays: dict[str, Replay] = {}
        for name, k in (("", MAX_K), (NO_DRAFT.name, 0)):
            overrides = (*_OVERRIDES, *options.overrides, f"engine.num_speculative_tokens={k}")
            about = name or "server"
            server = await contest.start(about, ServerProcess, options.config, overrides, about.replace(" ", "-"))
            replays[name] = Replay(server.ready["address"], scenario)
            contest.push_async_callback(replays[name].close)
            servers[replays[name]] = server

        async def give_turn(replay: Replay) -> None:
            await contest.turns.give(servers[replay].process)

        await give_turn(replays[""])
        operator = await contest.enter_async_context(Operator(servers[replays[""]].ready["admin_address"]))
        bar = contest.enter_context(Bar(console))
        tuned = await Tuner(operator, replays, scenario, bar.on_progress, on_turn=give_turn).tune(settings, [NO_DRAFT])
        traffic, count = await traffic_of(scenario, _CHANGES_AT, "changes"), options.changes
        async with operator.borrowed():
            changes = await measure_changes(
                operator,
                replays[""],
                traffic,
                k=_CHANGES_K,
                count=count,
                on_progress=lambda done: bar.on_progress(TuningProgress("changes", "K live", _CHANGES_AT, done, count)),
            )
    return tuned, changes


def _write(folder: Path, tuned: Tuned, about: dict[str, Any], found: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = as_json(tuned, about | {"figures": found})
    (folder / "tuning.json").write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
    facts = {name: str(value) for name, value in about.items()}
    (folder / "tuning.html").write_text(render_tuning(tuned, facts), encoding="utf-8")


if __name__ == "__main__":
    main()
