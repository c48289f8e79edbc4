"""Compares engine configurations in one run: speculation, prefix cache and compilation on and off, INT8 and bf16.

Each configuration has its own server. All servers run at once and take turns, block by block, so that a drift of the
machine affects all of them; the others are suspended meanwhile. The workload is the same for each: users type into
their own documents and send a request at each pause, so that a prefix cache has text to reuse. With `--one-at-a-time`
the servers run one after another, for machines without memory for all of them.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loadtest.bench.common.command import config_options, expected_errors, json_option
from loadtest.bench.common.contest import BenchPrompt, Turns
from loadtest.bench.common.figures import Block, Summary, report_console, rounded
from loadtest.bench.common.server import (
    ONE_CACHE,
    SERVES_ALL,
    Server,
)
from loadtest.bench.common.texts import typed_texts
from loadtest.processes.child import end_on_sigterm

_CONCURRENCY = (1, 16)
_NO_SPECULATION = ("engine.num_speculative_tokens=0",)
_NOT_COMPILED = ("engine.enforce_eager=true",)
_NO_PREFIX_CACHE = ("engine.vllm.enable_prefix_caching=false",)

Results = dict[str, dict[int, list[Block]]]
"""Blocks by configuration and concurrency."""


class _Options(TypedDict):
    documents: int
    keys: int
    rounds: int
    max_tokens: int
    prefix_chars: int
    suffix_chars: int
    seed: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration to measure."""

    name: str
    overrides: tuple[str, ...] = ()


def configurations(int8_model: Path | None) -> list[Configuration]:
    """Return the configurations: that of the file, and variations of it."""
    found = [
        Configuration("as configured"),
        Configuration("no speculation", _NO_SPECULATION),
        Configuration("not compiled", _NOT_COMPILED),
        Configuration("no prefix cache", _NO_PREFIX_CACHE),
        Configuration("neither", (*_NO_SPECULATION, *_NO_PREFIX_CACHE)),
    ]
    if int8_model is not None:
        int8 = (f"engine.model={int8_model.absolute()}",)
        found += [Configuration("INT8", int8), Configuration("INT8, no speculation", (*int8, *_NO_SPECULATION))]
    return found


@click.command()
@config_options
@click.option(
    "--int8-model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="An INT8 copy of the target, as `target-model quantize` makes it.",
)
@click.option("--documents", type=click.IntRange(16), default=16, show_default=True, help="Users at once, at most.")
@click.option("--keys", type=click.IntRange(1), default=2, show_default=True, help="Pauses of each user in a block.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Blocks of each kind.")
@click.option("--max-tokens", type=click.IntRange(8), default=48, show_default=True)
@click.option("--prefix-chars", type=click.IntRange(100), default=1500, show_default=True)
@click.option("--suffix-chars", type=click.IntRange(1), default=400, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Which texts are completed.")
@click.option("--one-at-a-time", is_flag=True, help="Run one server after the other, for want of memory.")
@json_option
def main(
    config: Path,
    overrides: tuple[str, ...],
    int8_model: Path | None,
    one_at_a_time: bool,
    as_json_only: bool,
    **options: Unpack[_Options],
) -> None:
    """Measure the effect of each part of the engine's configuration. The last line is a JSON object.

    \b
    Example:
        target-model quantize --model my-model --out build/int8 --scheme w8a8
        python -m loadtest.bench.engine --int8-model build/int8
    """
    end_on_sigterm()
    found = [
        Configuration(each.name, (*SERVES_ALL, *ONE_CACHE, *overrides, *each.overrides))
        for each in configurations(int8_model)
    ]
    groups = [[each] for each in found] if one_at_a_time else [found]
    results: Results = {}
    with expected_errors():
        for group in groups:
            results |= asyncio.run(_measure(config, group, options, Console(stderr=True)))
    if not as_json_only:
        _print(results, report_console())
    click.echo(json.dumps({name: _figures(blocks) for name, blocks in results.items()}))


async def _measure(config: Path, group: Sequence[Configuration], options: _Options, console: Console) -> Results:
    blocks, turns = _workload(options), Turns()
    async with AsyncExitStack() as stack:
        servers: list[Server] = []
        for configuration in group:
            with console.status(f"starting: {configuration.name}"):
                servers.append(
                    await stack.enter_async_context(Server(config, configuration.overrides, configuration.name))
                )
                turns.add(servers[-1].process)
        for server in servers:
            await turns.give(server.process)
            await server.run(blocks[0], max(_CONCURRENCY))
        results: Results = {server.name: {concurrency: [] for concurrency in _CONCURRENCY} for server in servers}
        with Progress(console=console) as progress:
            task = progress.add_task("measuring", total=(len(blocks) - 1) * len(servers))
            for number, block in enumerate(blocks[1:]):
                concurrency = _CONCURRENCY[number % len(_CONCURRENCY)]
                for server in servers:
                    await turns.give(server.process)
                    results[server.name][concurrency].append(await server.run(block, concurrency))
                    progress.advance(task)
    return results


def _workload(options: _Options) -> list[list[BenchPrompt]]:
    """Return a warm-up block, then blocks for each concurrency in turn. No document comes twice."""
    num_blocks = 1 + options["rounds"] * len(_CONCURRENCY)
    texts = typed_texts(
        options["documents"] * num_blocks,
        options["keys"],
        prefix_chars=options["prefix_chars"],
        suffix_chars=options["suffix_chars"],
        seed=options["seed"],
    )
    blocks: list[list[BenchPrompt]] = [[] for _ in range(num_blocks)]
    for number, text in enumerate(texts):
        blocks[number // options["documents"] % num_blocks].append(
            BenchPrompt(text.prefix, text.suffix, options["max_tokens"])
        )
    return blocks


def _figures(blocks: Mapping[int, Sequence[Block]]) -> dict[str, Any]:
    return {
        str(concurrency): {name: rounded(value) for name, value in asdict(Summary.of(own)).items()}
        for concurrency, own in blocks.items()
    }


def _print(results: Results, console: Console) -> None:
    for concurrency in _CONCURRENCY:
        table = Table(title=f"{concurrency} at a time", title_justify="left")
        table.add_column("configuration")
        for column in ("TTFT p50 ms", "p95 ms", "tokens/s each", "tokens/s together", "cached", "acceptance"):
            table.add_column(column, justify="right")
        for name, blocks in results.items():
            summary = Summary.of(blocks[concurrency])
            table.add_row(
                name,
                f"{summary.ttft_ms_p50:.1f}",
                f"{summary.ttft_ms_p95:.1f}",
                f"{summary.stream_tokens_per_s_p50:.0f}",
                f"{summary.tokens_per_s_p50:.0f}",
                f"{summary.cached_share:.1%}",
                "" if math.isnan(summary.acceptance) else f"{summary.acceptance:.1%}",
            )
        console.print(table)


if __name__ == "__main__":
    main()
