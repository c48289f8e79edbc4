"""Finds how many editors a server can promise an answer to: this server, `vllm serve` and llama.cpp's server.

The promise: of the real pauses (the user waits 500 ms or more) that any idle server would answer with text, at least
90% get their first text within 250 ms. The capacity is the largest number of simulated editors for which it holds.

- this server: the configured one, as `make serve` starts it. Editors keep a `Session` stream and send the text around
  the cursor from where it began when the file was opened.
- this server, completion cache off: the same with `cache.enabled=false`.
- vllm serve: as people use it, with its own defaults. Clients build a prefix-suffix-middle
  prompt from a window that slides with the cursor, and hang up at the user's next key.
- vllm serve, our prompts: the same, given the token ids of this server's prompts, which tells apart what the prompts
  gain and what the scheduling gains.
- llama.cpp: its server on the same weights (Q8_0), a slot for each sequence that this server's engine takes, clients
  as those of vllm serve. Only with `--llama-server`.

The rules of the comparison:

- Requests are sent at predetermined times, regardless of the earlier ones; latencies count from those times.
- One server runs at a time. The others are suspended.
- A round has one trace for each context; a trial of a number of editors has its first sessions. So all contestants get
  the same texts and pauses. Each run has its own part of all caches: no trial finds the prompts or the completions of
  another.
- A pause counts if at least one contestant answers it with text at idle.
- In each round the load tester's capacity search finds two numbers of editors between which the promise breaks, and the
  capacity is interpolated between them. Intervals are of the rounds; rounds go on until the contestants are told apart
  or the time is up, but there are at least three.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.bench.capacity.contestants import LLAMA, NAMES, OURS, start
from loadtest.bench.capacity.report import Findings, details, headline, picture, table
from loadtest.bench.capacity.rounds import Range, is_another_round_due
from loadtest.bench.capacity.runner import TrialRunner
from loadtest.bench.capacity.trials import CONTEXTS, Promise
from loadtest.bench.runner.benchmark import EXISTING_FILE, FILE, POSITIVE, Result, ServerOptions, benchmark, option
from loadtest.bench.runner.editing import EditingRuns
from loadtest.bench.runner.schedule import Contest
from loadtest.bench.runner.server import effective_config
from loadtest.targets import ClientSettings

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
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        options.picture.write_text(picture(found), encoding="utf-8")
    return Result(headline(found) | {"workload": _workload(options), "contexts": details(found)}, [table(found)])


async def _measure(options: _Options, console: Console) -> list[Findings]:
    effective = effective_config(options.config, options.overrides)
    names, settings = {OURS, *(options.only or NAMES)}, ClientSettings(options.max_tokens)
    begun = time.monotonic()
    found = [Findings(each.name, each.about, Promise()) for each in CONTEXTS]
    async with Contest(console) as contest:
        contestants = await start(
            contest, options.config, options.overrides, effective, names, options.llama_server, settings
        )
        limits, runs = Range(options.start, options.most), EditingRuns(contest)
        named = {each.name: each for each in contestants}
        runner = TrialRunner(named, runs, console, options.seconds, limits, options.seed)
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


def _workload(options: _Options) -> dict[str, Any]:
    """Return what the editors do, besides what the scenario's defaults say."""
    promise = Promise()
    contexts = {each.name: {"prefix_chars": each.prefix_chars, "suffix_chars": each.suffix_chars} for each in CONTEXTS}
    names = ("minutes", "seconds", "start", "most", "max_tokens", "seed")
    given = {name: getattr(options, name) for name in names}
    return {"within_ms": promise.within_s * 1000, "share": promise.share, "contexts": contexts, **given}


if __name__ == "__main__":
    main()
