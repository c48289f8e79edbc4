"""Measures the server's overhead over its engine, and compares it with `vllm serve`: TTFT and tokens/s.

Three processes run the same model with the same engine arguments: this project's server, vLLM's AsyncLLM called
directly, and `vllm serve` over HTTP. They take turns, block by block, in one run, so that a drift of the machine
affects all of them; the others are suspended meanwhile. The rules of the comparison:

- The engine alone is timed in the process that calls `generate`. So everything between an editor and the engine counts
  as the server's overhead, gRPC and the client's own work included.
- All contestants get the same prompt tokens, those of the server. `vllm serve` is measured with token ids, which saves
  it the tokenisation, and again with text, as an editor would send it.
- The model's end token ends a completion for all. The server goes first in each round. If its text rules end a
  completion, the other callers stop after the same number of tokens, so that all pay for the step in flight.
- Every request is a key in a document. The previous key was sent to all contestants just before, uncounted, so caches
  are as warm as while typing. With `--new-documents` there is no previous key, and no cache helps. No document comes
  twice. The table shows the share of prompt tokens from a prefix cache.
- TTFT is the time to the first visible text. A model often starts with blanks, which editors can't show and which the
  server sends with the text that follows. Differences and ratios of TTFT are medians over pairs of the same prompt;
  those of tokens/s are medians over pairs of neighbouring blocks. A figure with one name for 1 and for 16 concurrent
  requests is the worse of the two.

On two cores, 16 concurrent requests are CPU-bound: engine, server and client share the cores, for HTTP too. The
server's overhead is then its share of the CPU, not waiting.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import aiohttp
import click
from rich.console import Console
from rich.progress import Progress

from completion_server.core.errors import ConfigError
from loadtest.bench.common.command import config_options, expected_errors, json_option
from loadtest.bench.common.contest import BenchPrompt, Contestant, Turns, batches
from loadtest.bench.common.figures import Block, report_console
from loadtest.bench.common.server import (
    SERVES_ALL,
    CommandError,
    NotAnsweredError,
    Server,
    effective_config,
    render_prompts,
)
from loadtest.bench.common.texts import TooFewTextsError, typed_texts
from loadtest.bench.overhead.report import Results, figures, print_tables
from loadtest.bench.peers.bare_engine import BareEngine, peer_args
from loadtest.bench.peers.vllm_serve import ServeError, VllmServe
from loadtest.bench.prompt import replay
from loadtest.bench.prompt.settings import ReplaySettings
from loadtest.processes.child import StartError, end_on_sigterm

_BLOCK_SIZES = {1: 8, 16: 64}
"""Prompts in a block, by concurrency."""
_WARM_UP = 64
_FAILURES = (
    TooFewTextsError,
    StartError,
    CommandError,
    ConfigError,
    NotAnsweredError,
    ServeError,
    aiohttp.ClientError,
)


class _Options(TypedDict):
    requests: int
    concurrent_requests: int
    max_tokens: int
    prefix_chars: int
    suffix_chars: int
    seed: int
    new_documents: bool
    with_vllm_serve: bool


@click.command()
@config_options
@click.option("--requests", type=click.IntRange(8), default=96, show_default=True, help="Requests one at a time.")
@click.option(
    "--concurrent-requests", type=click.IntRange(64), default=384, show_default=True, help="Requests 16 at a time."
)
@click.option("--max-tokens", type=click.IntRange(8), default=48, show_default=True)
@click.option("--prefix-chars", type=click.IntRange(100), default=1500, show_default=True)
@click.option("--suffix-chars", type=click.IntRange(1), default=400, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Which texts are completed.")
@click.option("--new-documents", is_flag=True, help="Send documents that no server has seen before.")
@click.option("--quick", is_flag=True, help="A few requests of each kind, to see that all of it works.")
@click.option("--vllm-serve/--no-vllm-serve", "with_vllm_serve", default=True, help="Whether to compare with it.")
@json_option
def main(
    config: Path, overrides: tuple[str, ...], quick: bool, as_json_only: bool, **options: Unpack[_Options]
) -> None:
    """Measure the server against its bare engine and against `vllm serve`. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.overhead --config deploy/local/server.toml --quick
    """
    end_on_sigterm()
    if quick:
        options["requests"], options["concurrent_requests"] = _BLOCK_SIZES[1], _BLOCK_SIZES[16]
    console = Console(stderr=True)
    with expected_errors(ServeError, aiohttp.ClientError):
        effective = effective_config(config, overrides)
        results = asyncio.run(_measure(config, overrides, effective, options, console))
        replayed = _replayed(effective["engine_args"]["model"], console)
    if not as_json_only:
        print_tables(results, report_console())
    click.echo(json.dumps(figures(results) | replayed))


async def _measure(
    config: Path, overrides: Sequence[str], effective: dict[str, Any], options: _Options, console: Console
) -> Results:
    turns = Turns()
    async with AsyncExitStack() as stack:
        with console.status("starting the server"):
            server = await stack.enter_async_context(Server(config, (*SERVES_ALL, *overrides)))
            turns.add(server.process)
        with console.status("starting the engine alone"):
            bare = await stack.enter_async_context(
                BareEngine(effective | {"engine_args": peer_args(effective["engine_args"])})
            )
            others: list[Contestant] = [bare]
        serve: VllmServe | None = None
        if options["with_vllm_serve"]:
            with console.status("starting vllm serve"):
                serve = await stack.enter_async_context(VllmServe(effective))
            others += [serve, serve.with_text()]
        prompts = await _prompts(config, overrides, options, serve)
        turns.add(bare.process)
        if serve is not None:
            turns.add(serve.process)
        return await _contest(turns, server, others, prompts, options, console)


async def _prompts(
    config: Path, overrides: Sequence[str], options: _Options, serve: VllmServe | None
) -> list[BenchPrompt]:
    """Return two keys of each document: first all earlier keys, then all later ones."""
    count = _WARM_UP + sum(_num_blocks(options, concurrency) * size for concurrency, size in _BLOCK_SIZES.items())
    texts = typed_texts(
        count, 2, prefix_chars=options["prefix_chars"], suffix_chars=options["suffix_chars"], seed=options["seed"]
    )
    documents = [str(number) for number in range(count)] * 2
    prompts = await asyncio.to_thread(render_prompts, config, overrides, texts, options["max_tokens"], documents)
    if serve is None:
        return prompts
    return [replace(prompt, text=await serve.detokenise(prompt.token_ids)) for prompt in prompts]


async def _contest(
    turns: Turns,
    server: Contestant,
    others: Sequence[Contestant],
    prompts: Sequence[BenchPrompt],
    options: _Options,
    console: Console,
) -> Results:
    half = len(prompts) // 2
    keys = list(zip(prompts[:half], prompts[half:], strict=True))
    await _round(turns, server, others, keys[:_WARM_UP], max(_BLOCK_SIZES), options)
    rest = keys[_WARM_UP:]
    results: Results = {}
    with Progress(console=console) as progress:
        for concurrency, size in _BLOCK_SIZES.items():
            num_keys = _num_blocks(options, concurrency) * size
            blocks, rest = batches(rest[:num_keys], size), rest[num_keys:]
            task = progress.add_task(f"{concurrency} at a time", total=len(blocks))
            results[concurrency] = {each.name: [] for each in (server, *others)}
            for number, block in enumerate(blocks):
                in_turn = others[::-1] if number % 2 else others
                for name, answer in (await _round(turns, server, in_turn, block, concurrency, options)).items():
                    results[concurrency][name].append(answer)
                progress.advance(task)
    return results


async def _round(
    turns: Turns,
    server: Contestant,
    others: Sequence[Contestant],
    keys: Sequence[tuple[BenchPrompt, BenchPrompt]],
    concurrency: int,
    options: _Options,
) -> dict[str, Block]:
    """Give all contestants the same prompts, the server first; the others stop at its completion lengths."""
    earlier = [replace(key, max_tokens=1) for key, _ in keys]
    counted = [key for _, key in keys]
    answers: dict[str, Block] = {}
    for each in (server, *others):
        await turns.give(each.process)
        if not options["new_documents"]:
            await each.run(earlier, concurrency)
        answers[each.name] = await each.run(counted, concurrency)
        if each is server:
            samples = answers[server.name].samples
            counted = [prompt.ended_like(sample) for prompt, sample in zip(counted, samples, strict=True)]
    return answers


def _num_blocks(options: _Options, concurrency: int) -> int:
    num_requests = options["requests"] if concurrency == 1 else options["concurrent_requests"]
    return num_requests // _BLOCK_SIZES[concurrency]


def _replayed(model: str, console: Console) -> dict[str, Any]:
    """Return the prompt tokens per key, which needs only the model's tokenizer."""
    with console.status("replaying keys"):
        measured = replay.measure(ReplaySettings(model))
    return {"prefilled_tokens_per_key_ratio": measured["prefilled_tokens_per_key_ratio"]}


if __name__ == "__main__":
    main()
