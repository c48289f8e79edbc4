"""Finds how many editors a server can promise an answer to: this server, `vllm serve` and llama.cpp's server.

The promise: of the real pauses (the user waits 500 ms or more) that any idle server would answer with text, at least
90% get their first text within 250 ms. The capacity is the largest number of simulated editors for which it holds.

- this server: the configured one, as `make serve` starts it. Editors keep a `Session` stream and send the text around
  the cursor from where it began when the file was opened.
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
  the same texts and pauses. Each run has its own part of the prefix caches: no trial finds the prompts of another.
- A pause counts if at least one contestant answers it with text at idle.
- In each round the load tester's capacity search finds two numbers of editors between which the promise breaks, and the
  capacity is interpolated between them. Intervals are of the rounds; rounds go on until the contestants are told apart
  or the time is up, but there are at least three.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
from rich.console import Console

from loadtest.bench.capacity.contestants import Setup, start
from loadtest.bench.capacity.estimates import is_another_round_due
from loadtest.bench.capacity.report import Findings, details, headline, picture, print_table
from loadtest.bench.capacity.rounds import Range
from loadtest.bench.capacity.runner import RunnerSettings, TrialRunner
from loadtest.bench.capacity.texts import CONTEXTS, ContextSize
from loadtest.bench.capacity.trial import Promise
from loadtest.bench.common.command import config_options, expected_errors, json_option, typing_seed_option
from loadtest.bench.common.contest import Turns
from loadtest.bench.common.figures import report_console
from loadtest.bench.common.server import effective_config
from loadtest.processes.child import end_on_sigterm

_QUICK_S, _QUICK_EDITORS = 3.0, 4
_BUILT_LLAMA_SERVER = Path(".venv-llama/bin/llama-server")


class _Options(TypedDict):
    minutes: float
    seconds: float
    start: int
    most: int
    max_tokens: int
    seed: int


@click.command()
@config_options
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=6.0, show_default=True, help="Shortest length of a trial.")
@click.option("--from", "start", type=click.IntRange(1), default=12, show_default=True, help="Editors to begin with.")
@click.option("--to", "most", type=click.IntRange(1), default=192, show_default=True, help="Editors at most.")
@click.option("--max-tokens", type=click.IntRange(1), default=24, show_default=True)
@typing_seed_option
@click.option(
    "--llama-server",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"llama.cpp's server.  [default: {_BUILT_LLAMA_SERVER}, if it is there]",
)
@click.option(
    "--picture", "drawing", type=click.Path(dir_okay=False, path_type=Path), help="Draw the editors into this SVG file."
)
@click.option("--quick", is_flag=True, help="One round of short trials, to see that all of it works.")
@json_option
def main(
    config: Path,
    overrides: tuple[str, ...],
    llama_server: Path | None,
    drawing: Path | None,
    quick: bool,
    as_json_only: bool,
    **options: Unpack[_Options],
) -> None:
    """Find the number of editors that each server can serve. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.capacity --quick
        python -m loadtest.bench.capacity --minutes 30 --picture docs/images/capacity.svg
    """
    end_on_sigterm()
    if quick:
        options |= {"seconds": _QUICK_S, "start": _QUICK_EDITORS, "most": 2 * _QUICK_EDITORS}
    if llama_server is None and _BUILT_LLAMA_SERVER.exists():
        llama_server = _BUILT_LLAMA_SERVER
    console = Console(stderr=True)
    with expected_errors():
        effective = effective_config(config, overrides)
        setup = Setup(config, overrides, effective, llama_server, options["max_tokens"])
        found = asyncio.run(_measure(setup, options, console, is_one_round=quick))
    if drawing is not None:
        drawing.parent.mkdir(parents=True, exist_ok=True)
        drawing.write_text(picture(found), encoding="utf-8")
    if not as_json_only:
        print_table(found, report_console())
    click.echo(json.dumps(headline(found) | {"workload": _workload(options), "contexts": details(found)}))


async def _measure(setup: Setup, options: _Options, console: Console, *, is_one_round: bool) -> list[Findings]:
    begun = time.monotonic()
    found = [Findings(each.name, _about(each), Promise()) for each in CONTEXTS]
    async with AsyncExitStack() as stack:
        turns = Turns()
        contestants = await start(stack, turns, setup, console)
        settings = RunnerSettings(options["seconds"], Range(options["start"], options["most"]), options["seed"])
        runner = TrialRunner({each.name: each for each in contestants}, turns, settings, console)
        with console.status("warming up"):
            await runner.warm_up()
        number, round_s, is_due = 0, 0.0, True
        while is_due:
            round_begun = time.monotonic()
            for context, each in zip(CONTEXTS, found, strict=True):
                if not each.is_decided:
                    await runner.round(number, context, each)
            number += 1
            round_s = time.monotonic() - round_begun
            is_due = not is_one_round and is_another_round_due(
                number,
                has_decided=all(each.is_decided for each in found),
                elapsed_s=time.monotonic() - begun,
                round_s=round_s,
                limit_s=options["minutes"] * 60,
            )
    return found


def _about(context: ContextSize) -> str:
    return f"{context.prefix_chars:,} + {context.suffix_chars} characters"


def _workload(options: _Options) -> dict[str, Any]:
    """Return what the editors do, besides what the scenario's defaults say."""
    promise = Promise()
    contexts = {each.name: {"prefix_chars": each.prefix_chars, "suffix_chars": each.suffix_chars} for each in CONTEXTS}
    return {"within_ms": promise.within_s * 1000, "share": promise.share, "contexts": contexts, **options}


if __name__ == "__main__":
    main()
