"""Compares engine configurations in one run: speculation, prefix cache and compilation on and off, INT8 and bf16.

Each configuration has its own server. All servers run at once and take turns, block by block. The workload is the same
for each: users type into their own documents and send a request at each pause, so that a prefix cache has text to
reuse. With `--one-at-a-time` the servers run one after another, for machines without memory for all of them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from loadtest.bench.runner.benchmark import EXISTING_FOLDER, Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import Block, summary
from loadtest.bench.runner.loops import BenchPrompt, summary_table
from loadtest.bench.runner.prompts import typed_texts
from loadtest.bench.runner.schedule import Contest
from loadtest.bench.runner.server import ONE_CACHE, SERVES_ALL, ServerProcess

_CONCURRENCY = (1, 16)
_NO_SPECULATION = ("engine.num_speculative_tokens=0",)
_NO_PREFIX_CACHE = ("engine.vllm.enable_prefix_caching=false",)

Configurations = Mapping[str, tuple[str, ...]]
"""Overrides by the name of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    int8_model: Path | None = option(
        None, "An INT8 copy of the target, as `target-model quantize` makes it.", EXISTING_FOLDER
    )
    documents: int = option(16, "Users at once, at most.", click.IntRange(16))
    keys: int = option(2, "Pauses of each user in a block.", click.IntRange(1))
    rounds: int = option(3, "Blocks of each kind.", click.IntRange(1))
    max_tokens: int = option(48, "", click.IntRange(8))
    prefix_chars: int = option(1500, "", click.IntRange(100))
    suffix_chars: int = option(400, "", click.IntRange(1))
    seed: int = option(0, "Which texts are completed.", int)
    one_at_a_time: bool = option(False, "Run one server after the other, for want of memory.")


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Measure the effect of each part of the engine's configuration. The last line is a JSON object.

    \b
    Example:
        target-model quantize --model my-model --out build/int8 --scheme w8a8
        python -m loadtest.bench.engine --int8-model build/int8
    """
    found = configurations(options.int8_model)
    groups = [{name: own} for name, own in found.items()] if options.one_at_a_time else [found]
    blocks: dict[str, dict[int, list[Block]]] = {}
    for group in groups:
        blocks |= asyncio.run(_measure(group, options, console))
    figures = {
        name: {concurrency: summary(own) for concurrency, own in by_concurrency.items()}
        for name, by_concurrency in blocks.items()
    }
    tables = [
        summary_table(f"{concurrency} at a time", {name: own[concurrency] for name, own in blocks.items()})
        for concurrency in _CONCURRENCY
    ]
    return Result(figures, tables)


def configurations(int8_model: Path | None) -> Configurations:
    """Return the configurations: that of the file, and variations of it."""
    found = {
        "as configured": (),
        "no speculation": _NO_SPECULATION,
        "not compiled": ("engine.enforce_eager=true",),
        "no prefix cache": _NO_PREFIX_CACHE,
        "neither": (*_NO_SPECULATION, *_NO_PREFIX_CACHE),
    }
    if int8_model is not None:
        int8 = (f"engine.model={int8_model.absolute()}",)
        found |= {"INT8": int8, "INT8, no speculation": (*int8, *_NO_SPECULATION)}
    return found


async def _measure(group: Configurations, options: _Options, console: Console) -> dict[str, dict[int, list[Block]]]:
    warm_up, *blocks = _workload(options)
    async with Contest(console) as contest:
        servers = []
        for name, own in group.items():
            overrides = (*SERVES_ALL, *ONE_CACHE, *options.overrides, *own)
            servers.append(await contest.start(name, ServerProcess, options.config, overrides, name))
        for server in servers:
            await contest.give_turn(server.process)
            await server.run(warm_up, max(_CONCURRENCY))
        results: dict[str, dict[int, list[Block]]] = {each.name: {n: [] for n in _CONCURRENCY} for each in servers}
        with Progress(console=console) as progress:
            for number, block in enumerate(progress.track(blocks, description="measuring")):
                concurrency = _CONCURRENCY[number % len(_CONCURRENCY)]
                for server in servers:
                    await contest.give_turn(server.process)
                    results[server.name][concurrency].append(await server.run(block, concurrency))
    return results


def _workload(options: _Options) -> list[list[BenchPrompt]]:
    """Return a warm-up block, then blocks for each concurrency in turn. No document comes twice."""
    num_blocks = 1 + options.rounds * len(_CONCURRENCY)
    texts = typed_texts(
        options.documents * num_blocks,
        options.keys,
        prefix_chars=options.prefix_chars,
        suffix_chars=options.suffix_chars,
        seed=options.seed,
    )
    blocks: list[list[BenchPrompt]] = [[] for _ in range(num_blocks)]
    for number, text in enumerate(texts):
        prompt = BenchPrompt(text.prefix, text.suffix, options.max_tokens)
        blocks[number // options.documents % num_blocks].append(prompt)
    return blocks


if __name__ == "__main__":
    main()
