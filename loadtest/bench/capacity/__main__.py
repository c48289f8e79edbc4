"""Finds how many editors a server can promise an answer to: this server, `vllm serve` and llama.cpp's server.

The promise: of the real pauses (the user waits 500 ms or more) that any idle server would answer with text, at least
90% get their first text within 250 ms. The capacity is the largest number of simulated editors for which it holds.
docs/benchmarks.md has the contestants. The rules of the comparison:

- Requests are sent at predetermined times, regardless of the earlier ones; latencies count from those times.
- One server runs at a time. The others are suspended.
- A round has one trace for each context; a trial of a number of editors has its first sessions. So all contestants get
  the same texts and pauses. Each run has its own part of all caches: no trial finds the prompts or the completions of
  another.
- llama.cpp has the same weights (Q8_0), and a slot for each sequence that this server's engine takes.
- In each round the load tester's capacity search finds two numbers of editors between which the promise breaks, and the
  capacity is interpolated between them. Intervals are of the rounds; rounds go on until the contestants are told apart
  or the time is up, but there are at least three.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.bench.capacity.report import (
    LLAMA,
    NAMES,
    OURS,
    OURS_UNCACHED,
    VLLM,
    VLLM_SAME_PROMPTS,
    Findings,
    details,
    headline,
    picture,
    table,
)
from loadtest.bench.capacity.rounds import TrialRunner, is_another_round_due
from loadtest.bench.capacity.trials import CONTEXTS, PROMISED_SHARE, WITHIN_S
from loadtest.bench.peers.llama_server import LlamaServer
from loadtest.bench.peers.vllm_serve import VllmServe, vllm_contestant
from loadtest.bench.runner.benchmark import (
    EXISTING_FILE,
    FILE,
    POSITIVE,
    Result,
    ServerOptions,
    benchmark,
    option,
    write_text,
)
from loadtest.bench.runner.editing import EditingContestant, EditingRuns, ServerPrompts, server_contestant
from loadtest.bench.runner.schedule import Contest
from loadtest.bench.runner.server import ServerProcess, effective_config
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.http import HttpTarget

_QUICK_S, _QUICK_EDITORS = 3.0, 4
_BUILT_LLAMA_SERVER = Path(".venv-llama/bin/llama-server")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    minutes: float = option(15.0, "", POSITIVE)
    seconds: float = option(6.0, "Shortest length of a trial.", click.FloatRange(1))
    start: int = option(12, "Editors to begin with.", click.IntRange(1), "--from")
    most: int = option(192, "Editors at most.", click.IntRange(1), "--to")
    max_tokens: int = option(24, "", click.IntRange(1))
    seed: int = option(0, "Who types what and when.", int)
    llama_server: Path | None = option(
        None, f"llama.cpp's server.  [default: {_BUILT_LLAMA_SERVER}, if it is there]", EXISTING_FILE
    )
    only: tuple[str, ...] = option(
        (), f'Measure "{OURS}" and this contestant. May be repeated.  [default: all]', click.Choice(NAMES)
    )
    picture: Path | None = option(None, "Draw the editors into this SVG file.", FILE)
    quick: bool = option(False, "One round of short trials, to see that all of it works.")


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Find the number of editors that each server can serve. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.capacity --quick
        python -m loadtest.bench.capacity --only "this server, completion cache off"
        python -m loadtest.bench.capacity --minutes 30 --picture docs/images/capacity.svg
    """
    if options.quick:
        options = replace(options, seconds=_QUICK_S, start=_QUICK_EDITORS, most=2 * _QUICK_EDITORS)
    if options.llama_server is None and _BUILT_LLAMA_SERVER.exists():
        options = replace(options, llama_server=_BUILT_LLAMA_SERVER)
    if LLAMA in options.only and options.llama_server is None:
        msg = f"{LLAMA} takes part only with --llama-server"
        raise click.BadParameter(msg, param_hint="--only")
    found = asyncio.run(_measure(options, console))
    if options.picture is not None:
        write_text(options.picture, picture(found))
    return Result(headline(found) | {"workload": _workload(options), "contexts": details(found)}, [table(found)])


async def _measure(options: _Options, console: Console) -> list[Findings]:
    begun = time.monotonic()
    found = [Findings(each.name, each.about) for each in CONTEXTS]
    async with Contest(console) as contest:
        contestants = {each.name: each for each in await _start(contest, options)}
        limits = min(options.start, options.most), options.most
        runner = TrialRunner(contestants, EditingRuns(contest), console, options.seconds, limits, options.seed)
        with console.status("warming up"):
            await runner.warm_up()
        number, is_due = 0, True
        while is_due:
            round_begun = time.monotonic()
            for context, each in zip(CONTEXTS, found, strict=True):
                if not each.is_decided:
                    await runner.round(number, context, each)
            number += 1
            is_due = not options.quick and is_another_round_due(
                number,
                has_decided=all(each.is_decided for each in found),
                elapsed_s=time.monotonic() - begun,
                round_s=time.monotonic() - round_begun,
                limit_s=options.minutes * 60,
            )
    return found


async def _start(contest: Contest, options: _Options) -> list[EditingContestant]:
    """Start the contestants; llama.cpp's is left out without its binary."""
    effective = effective_config(options.config, options.overrides)
    names, settings = {OURS, *(options.only or NAMES)}, ClientSettings(options.max_tokens)
    found: list[EditingContestant] = []
    for name, cache in caches(effective).items():
        if name in names:
            own = (*options.overrides, f"cache.enabled={cache}")
            server = await contest.start(name, ServerProcess, options.config, own, name)
            found.append(server_contestant(server, settings))
    if {VLLM, VLLM_SAME_PROMPTS} & names:
        prompts, about = ServerPrompts(effective), f"{VLLM}, which may compile the model"
        serve = await contest.start(about, VllmServe, effective, has_own_defaults=True)
        both = (
            vllm_contestant(VLLM, serve, prompts, settings, has_window=True),
            vllm_contestant(VLLM_SAME_PROMPTS, serve, prompts, settings),
        )
        found += [each for each in both if each.name in names]
    if LLAMA in names and options.llama_server is not None:
        llama = await contest.start(LLAMA, LlamaServer, options.llama_server, effective)
        spec = TargetSpec(LLAMA, "llama+http", (llama.host,))
        found.append(EditingContestant(LLAMA, llama.process, lambda _run: HttpTarget(spec, settings), has_window=True))
    return found


def caches(effective: Mapping[str, Any]) -> dict[str, str]:
    """Return `cache.enabled` of each of this server's contestants. A server of a benchmark has no cache by default."""
    return {OURS: json.dumps(effective["cache"]["enabled"]), OURS_UNCACHED: "false"}


def _workload(options: _Options) -> dict[str, Any]:
    """Return what the editors do, besides what the scenario's defaults say."""
    contexts = {each.name: {"prefix_chars": each.prefix_chars, "suffix_chars": each.suffix_chars} for each in CONTEXTS}
    given = {name: getattr(options, name) for name in ("minutes", "seconds", "start", "most", "max_tokens", "seed")}
    return {"within_ms": WITHIN_S * 1000, "share": PROMISED_SHARE, "contexts": contexts, **given}


if __name__ == "__main__":
    main()
