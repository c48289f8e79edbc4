"""Measures the server's overhead over its engine, and compares it with `vllm serve`: TTFT and tokens/s.

Three processes run the same model with the same engine arguments: this project's server, vLLM's AsyncLLM called
directly, and `vllm serve` over HTTP. They take turns, block by block, in one run. The rules of the comparison:

- The engine alone is timed in the process that calls `generate`. So everything between an editor and the engine counts
  as the server's overhead, gRPC and the client's own work included.
- All engines have the same priority and K. As configured, the server's engine yields to other work of the machine, and
  the server chooses K itself.
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
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Mode
from loadtest.bench.peers.bare_engine import BareEngine, peer_args
from loadtest.bench.peers.vllm_serve import VllmServe
from loadtest.bench.prompt.replay import ReplayOptions, measure_layouts
from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import Block, median_of_pairs, shown, summary, text_table
from loadtest.bench.runner.loops import BenchPrompt, PromptContestant, summary_table
from loadtest.bench.runner.prompts import typed_texts
from loadtest.bench.runner.schedule import Contest
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess, effective_config, prompt_maker

_BLOCK_SIZES = {1: 8, 16: 64}
"""Prompts in a block, by concurrency."""
_WARM_UP = 64
_OVERRIDES = (*SERVES_ALL, "engine.nice=0", "speculation.mode=fixed")
_SERVER = "server"
_VLLM_TEXT = f"{VllmServe.name}, text"
_PEERS = {VllmServe.name: "vllm_serve", _VLLM_TEXT: "vllm_serve_text"}
_AIMS = {"ttft_added_ms_p50": "at most 1.5", "tokens_per_s_ratio_to_engine": "at least 0.95"}

KeyPair = tuple[BenchPrompt, BenchPrompt]
"""Two successive keys in a document, of which the second counts."""
Blocks = Mapping[str, Sequence[Block]]
"""By contestant; the same place in two lists is the same round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    requests: int = option(96, "Requests one at a time.", click.IntRange(8))
    concurrent_requests: int = option(384, "Requests 16 at a time.", click.IntRange(64))
    max_tokens: int = option(48, "", click.IntRange(8))
    prefix_chars: int = option(1500, "", click.IntRange(100))
    suffix_chars: int = option(400, "", click.IntRange(1))
    seed: int = option(0, "Which texts are completed.", int)
    new_documents: bool = option(False, "Send documents that no server has seen before.")
    quick: bool = option(False, "A few requests of each kind, to see that all of it works.")
    with_vllm_serve: bool = option(True, "Whether to compare with it.", None, "--vllm-serve/--no-vllm-serve")

    def num_blocks(self, concurrency: int) -> int:
        """Return the number of blocks of a concurrency."""
        if self.quick:
            return 1
        num_requests = self.requests if concurrency == 1 else self.concurrent_requests
        return num_requests // _BLOCK_SIZES[concurrency]


@benchmark(_Options, aiohttp.ClientError, InvalidRequestError)
def main(options: _Options, console: Console) -> Result:
    """Measure the server against its bare engine and against `vllm serve`. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.overhead --config deploy/local/server.toml --quick
    """
    effective = effective_config(options.config, options.overrides)
    found = asyncio.run(_measure(effective, options, console))
    with console.status("replaying keys"):
        replayed = measure_layouts(ReplayOptions(model=effective["engine_args"]["model"]))
    by_concurrency = {concurrency: _figures(blocks) for concurrency, blocks in found.items()}
    tables = [
        summary_table(f"{sum(len(each.samples) for each in own[_SERVER])} requests each, {n} at a time", own, _PEERS)
        for n, own in found.items()
    ]
    figures = _worst(by_concurrency) | {
        "by_concurrency": {
            str(n): by_concurrency[n] | {"contestants": {name: summary(each) for name, each in own.items()}}
            for n, own in found.items()
        },
        "prefilled_tokens_per_key_ratio": replayed["prefilled_tokens_per_key_ratio"],
    }
    return Result(figures, [*tables, _table(by_concurrency)])


async def _measure(effective: dict[str, Any], options: _Options, console: Console) -> dict[int, Blocks]:
    async with Contest(console) as contest:
        overrides, peer_config = (*_OVERRIDES, *options.overrides), {"engine_args": peer_args(effective["engine_args"])}
        server = await contest.start("the server", ServerProcess, options.config, overrides, _SERVER)
        engine = await contest.start("the engine alone", BareEngine, effective | peer_config)
        contestants = [PromptContestant(each.name, each.process, each.run) for each in (server, engine)]
        keys = await asyncio.to_thread(_keys, effective, options)
        if options.with_vllm_serve:
            serve = await contest.start("vllm serve", VllmServe, effective)
            await contest.give_turn(serve.process)
            keys = [(await _with_text(serve, earlier), await _with_text(serve, later)) for earlier, later in keys]
            contestants += [
                PromptContestant(serve.name, serve.process, serve.run),
                PromptContestant(_VLLM_TEXT, serve.process, serve.run_text),
            ]
        await _round(contest, contestants, keys[:_WARM_UP], max(_BLOCK_SIZES), options)
        results: dict[int, dict[str, list[Block]]] = {}
        rest = keys[_WARM_UP:]
        with Progress(console=console) as progress:
            for concurrency, size in _BLOCK_SIZES.items():
                num_keys = options.num_blocks(concurrency) * size
                blocks = [rest[start : start + size] for start in range(0, num_keys, size)]
                rest = rest[num_keys:]
                results[concurrency] = {each.name: [] for each in contestants}
                for number, block in enumerate(progress.track(blocks, description=f"{concurrency} at a time")):
                    others = contestants[:0:-1] if number % 2 else contestants[1:]
                    answers = await _round(contest, [contestants[0], *others], block, concurrency, options)
                    for name, answer in answers.items():
                        results[concurrency][name].append(answer)
    return dict(results)


def _keys(effective: Mapping[str, Any], options: _Options) -> list[KeyPair]:
    """Return two keys of each document, with the token ids that the server gives its engine."""
    count = _WARM_UP + sum(options.num_blocks(concurrency) * size for concurrency, size in _BLOCK_SIZES.items())
    texts = typed_texts(
        count, 2, prefix_chars=options.prefix_chars, suffix_chars=options.suffix_chars, seed=options.seed
    )
    maker = prompt_maker(effective)
    prompts = []
    for number, (prefix, suffix) in enumerate(texts):
        name = str(number % count)
        made, _build_ms = maker.make("", prefix, suffix, session=name, mode=Mode.MULTI_LINE)
        ids = tuple(made.token_ids)
        prompts.append(
            BenchPrompt(prefix, suffix, options.max_tokens, ids, stop_token_ids=made.stop_token_ids, document=name)
        )
    return list(zip(prompts[:count], prompts[count:], strict=True))


async def _with_text(serve: VllmServe, prompt: BenchPrompt) -> BenchPrompt:
    return replace(prompt, text=await serve.detokenise(prompt.token_ids))


async def _round(
    contest: Contest, in_turn: Sequence[PromptContestant], keys: Sequence[KeyPair], concurrency: int, options: _Options
) -> dict[str, Block]:
    """Give all contestants the same prompts, the server first; the others stop at its completion lengths."""
    earlier = [replace(key, max_tokens=1) for key, _ in keys]
    counted = [key for _, key in keys]
    answers: dict[str, Block] = {}
    for each in in_turn:
        await contest.give_turn(each.process)
        if not options.new_documents:
            await each.run(earlier, concurrency)
        answers[each.name] = await each.run(counted, concurrency)
        if each is in_turn[0]:
            samples = answers[each.name].samples
            counted = [prompt.ended_like(sample) for prompt, sample in zip(counted, samples, strict=True)]
    return answers


def _figures(blocks: Blocks) -> dict[str, float]:
    found = {
        "ttft_added_ms_p50": _paired_ttft(blocks, BareEngine.name, ratio=False),
        "tokens_per_s_ratio_to_engine": _paired_rate(blocks, BareEngine.name),
    }
    for peer, key in _PEERS.items():
        if peer in blocks:
            found[f"ttft_ratio_to_{key}"] = _paired_ttft(blocks, peer, ratio=True)
            found[f"tokens_per_s_ratio_to_{key}"] = _paired_rate(blocks, peer)
    return found


def _paired_ttft(blocks: Blocks, other: str, *, ratio: bool) -> float:
    ours, theirs = ([s.ttft_ms for block in blocks[name] for s in block.samples] for name in (_SERVER, other))
    return median_of_pairs(ours, theirs, ratio=ratio)


def _paired_rate(blocks: Blocks, other: str) -> float:
    ours, theirs = ([block.tokens_per_s for block in blocks[name]] for name in (_SERVER, other))
    return median_of_pairs(ours, theirs, ratio=True)


def _worst(by_concurrency: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in next(iter(by_concurrency.values())):
        values = [value for at in by_concurrency.values() if not math.isnan(value := at[name])]
        pick = min if name.startswith("tokens_per_s") else max
        found[name] = pick(values, default=None)
    return found


def _table(by_concurrency: Mapping[int, Mapping[str, float]]) -> Table:
    columns = list(by_concurrency.values())
    rows = tuple(
        (name, *(shown(each[name]) for each in columns), _AIMS.get(name, "below 1" if "ttft" in name else "above 1"))
        for name in columns[0]
    )
    headings = ("", *(f"{concurrency} at a time" for concurrency in by_concurrency), "aim")
    return text_table("The server against the others, medians of pairs", headings, rows)


if __name__ == "__main__":
    main()
