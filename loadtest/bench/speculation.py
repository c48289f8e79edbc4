"""Measures the gain of speculation with the configured drafts for each K, and that of a tuned table, in one run.

Two servers run: one with drafts and a K that changes live, K = 0 included, and one started without. They take turns on
the same texts, so that a drift of the machine affects both; the other is suspended meanwhile.

Then K is changed repeatedly under traffic. The time of a change runs from the SetSpeculation call, for a change from
K = 0 to another, until a polled GetSpeculation shows the first verified draft tokens. It is an upper bound: drafts are
verified one step after the first step with the new K, and a poll comes later still.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

from loadtest.bench.runner.benchmark import COUNT, ServerOptions, benchmark, option, percentile
from loadtest.bench.runner.contest import Contest
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from loadtest.commands.tune import Bar, numbers
from loadtest.targets import TargetError
from loadtest.targets.speculation import Operator
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace
from loadtest.tuning.blocks import Blocks, Variant
from loadtest.tuning.choice import MIN_ROUNDS, OFF, as_variant, crossover, goodput_ratio
from loadtest.tuning.replay import Replay, traffic_of
from loadtest.tuning.tuner import Tuned, Tuner, TuningError, TuningSettings

MAX_K, MAX_AT_ONCE = 8, 64
NO_DRAFT = Variant("no draft")

_OVERRIDES = (
    *SERVES_ALL,
    "shed.lag_ms=0",
    f"engine.max_num_seqs={MAX_AT_ONCE}",
    f"scheduling.max_slots={MAX_AT_ONCE}",
)
_CHANGES_AT, _CHANGES_K = 4, 4
"""Concurrent generations, and K, while the time of a change is measured."""
_POLL_S = 0.001
_GIVE_UP_S = 10.0
_STILL_POLLS = 3
"""Number of polls with new tokens but no new drafts after which drafting has ended."""
_ENDLESS_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions(ServerOptions):
    """The options."""

    rounds: int = option(4, "Blocks of each kind.", click.IntRange(MIN_ROUNDS), quick=MIN_ROUNDS)
    seconds: float = option(0.6, "Of a block, at the least.", click.FloatRange(0.2), quick=0.3)
    changes: int = option(100, "Of K, under traffic.", COUNT, quick=10)
    seed: int = option(0, "Which texts are completed, and in which order.", int)
    k: str | None = option(
        None, f"Values of K to try beside 0.  [default: 1 to {MAX_K}]", quick="1,4", metavar="N,N,..."
    )

    def tuning(self) -> TuningSettings:
        """Return the extent of the measurement. Raises TuningError if the Ks are not numbers, or too large."""
        ks = numbers("--k", self.k, least=1)
        if ks and ks[-1] > MAX_K:
            raise TuningError(f"--k: must be at most {MAX_K}, got {ks[-1]}")
        at_once = (1, 4) if self.quick else (1, 4, 16, MAX_AT_ONCE)
        return TuningSettings(at_once, self.rounds, self.rounds, self.seconds, ks)


@benchmark(SpeculationOptions)
def main(options: SpeculationOptions, console: Console) -> Mapping[str, Any]:
    """Measure the gain of speculation at K = 0 to 8 and 1 to 64 at once. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.speculation
        python -m loadtest.bench.speculation --set engine.draft_model=draft_model/embedded --k 1,2,4
    """
    return asyncio.run(measure(options, console))


async def measure(options: SpeculationOptions, console: Console, drafting: Sequence[str] = ()) -> dict[str, Any]:
    """Return the figures. `drafting` are further settings of the server that drafts."""
    tuned, changes = await _measure(options, console, drafting)
    first, over = tuned.choices[0], tuned.verification
    both, where = Blocks((*tuned.sweep.all, *tuned.others.all)), crossover(tuned.table)
    checked = tuned.checks if tuned.checks.all else both
    over_no_draft = {
        f"{name}_over_no_draft_batch_{each.concurrency}": goodput_ratio(
            both, variant, NO_DRAFT, concurrencies=[each.concurrency]
        ).value
        for each in tuned.choices
        for name, variant in (("off", OFF), ("speedup", Variant.fixed(each.best_k)))
    }
    return {
        "best_k_batch_1": first.k,
        "best_k_above_0_batch_1": first.best_k,
        "speedup_batch_1": first.gain.value,
        **over_no_draft,
        "crossover_batch": math.nan if where is None else where,
        "tuned_over_best_fixed": over.table_over_fixed,
        "best_fixed_k": over.best_fixed.k or 0,
        "tuned_over_off": over.table_over_off,
        "tuned_over_no_draft": goodput_ratio(checked, as_variant(tuned.table), NO_DRAFT).value,
        **changes,
        "table": tuned.table,
        "recommended": tuned.recommended,
    }


async def _measure(
    options: SpeculationOptions, console: Console, drafting: Sequence[str]
) -> tuple[Tuned, dict[str, float]]:
    settings = options.tuning()
    scenario = Scenario.load("steady").scaled(seed=options.seed)
    async with Contest(console) as contest:
        servers: dict[Replay, ServerProcess] = {}
        replays: dict[str, Replay] = {}
        for name, k, own in (("", MAX_K, drafting), (NO_DRAFT.name, 0, ())):
            overrides = (*_OVERRIDES, *options.overrides, f"engine.num_speculative_tokens={k}", *own)
            about = name or "server"
            server = await contest.start(about, ServerProcess, options.config, overrides, about.replace(" ", "-"))
            replays[name] = Replay(server.ready["address"], scenario)
            contest.push_async_callback(replays[name].close)
            servers[replays[name]] = server

        async def give_turn(replay: Replay) -> None:
            await contest.give_turn(servers[replay].process)

        await give_turn(replays[""])
        operator = await contest.enter_async_context(Operator(servers[replays[""]].ready["admin_address"]))
        with Bar(console) as bar:
            tuner = Tuner(operator, replays, scenario, bar.on_progress, on_turn=give_turn)
            tuned = await tuner.tune(settings, [NO_DRAFT])
        await give_turn(replays[""])
        traffic = await traffic_of(scenario, _CHANGES_AT, "changes")
        with console.status("changing K"):
            async with operator.borrowed():
                return tuned, await _changes(operator, replays[""], traffic, options.changes)


async def _changes(operator: Operator, replay: Replay, traffic: Trace, count: int) -> dict[str, float]:
    """Change from 0 to K `count` times while a caller for each session keeps the engine busy; return percentiles.

    `live_change_ms` is the time until the first verified draft tokens of the new K, `live_change_call_ms` that of the
    call alone. Raises TargetError if a request failed, or a change was never seen.
    """
    shown_ms, call_ms = [], []
    callers = asyncio.create_task(replay.run(traffic, _ENDLESS_S))
    try:
        for _ in range(count):
            await operator.put(((1, 1, 0),))
            await _polled(operator, _STILL_POLLS, drafts=False)
            start = time.perf_counter()
            call_ms.append(await operator.put(((1, 1, _CHANGES_K),)))
            await _polled(operator, 1, drafts=True)
            shown_ms.append((time.perf_counter() - start) * 1000)
    finally:
        callers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await callers
    return {
        f"{name}_ms_p{percent}": percentile(found_ms, percent)
        for name, found_ms in (("live_change", shown_ms), ("live_change_call", call_ms))
        for percent in (50, 99)
    }


async def _polled(operator: Operator, num_polls: int, *, drafts: bool) -> None:
    """Poll until so many polls in a row had new draft tokens, or new tokens without drafts. Raises TargetError.

    Each poll is compared with the last one, because old tokens leave the server's window.
    """
    now, num_found = (await operator.get()).figures, 0
    try:
        async with asyncio.timeout(_GIVE_UP_S):
            while num_found < num_polls:
                await asyncio.sleep(_POLL_S)
                before, now = now, (await operator.get()).figures
                if (now.drafted_tokens > before.drafted_tokens) == drafts:
                    num_found += drafts or now.generated_tokens > before.generated_tokens
                elif not drafts:
                    num_found = 0
    except TimeoutError:
        raise TargetError(f"a change of K was not seen within {_GIVE_UP_S:.0f} s") from None


if __name__ == "__main__":
    main()
