"""Measures the server's overhead over its engine, and compares it with `vllm serve`: TTFT and tokens/s.

Three processes run the same model with the same engine arguments: this project's server, vLLM's AsyncLLM called
directly, and `vllm serve` over HTTP. They take turns, block by block, in one run. The rules of the comparison:

- The engine alone is timed in the process that calls `generate`. So everything between an editor and the engine counts
  as the server's overhead, gRPC and the client's own work included.
- All engines have the same priority and K. As configured, the server's engine yields to other work of the machine, and
  the server chooses K itself.
- All contestants get the same prompt tokens, those of the server, which saves `vllm serve` the tokenisation.
- The model's end token ends a completion for all. The server goes first in each round. If its text rules end a
  completion, the other callers stop after the same number of tokens, so that all pay for the step in flight.
- Every request is a key in a document. The previous key was sent to all contestants just before, uncounted, so caches
  are as warm as while typing. No document comes twice.
- TTFT is the time to the first visible text. A model often starts with blanks, which editors can't show and which the
  server sends with the text that follows. Differences and ratios of TTFT are medians over pairs of the same prompt;
  those of tokens/s are medians over pairs of neighbouring blocks. A figure with one name for 1 and for 16 concurrent
  requests is the worse of the two.

On two cores, 16 concurrent requests are CPU-bound: engine, server and client share the cores, for HTTP too. The
server's overhead is then its share of the CPU, not waiting.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import click
from rich.console import Console
from rich.progress import Progress

from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Mode
from loadtest.bench.peers.bare_engine import BareEngine, peer_args
from loadtest.bench.peers.vllm_serve import VllmServe
from loadtest.bench.runner.benchmark import ServerOptions, benchmark, option
from loadtest.bench.runner.contest import Contest
from loadtest.bench.runner.figures import percentile, share
from loadtest.bench.runner.loops import BenchPrompt, Block
from loadtest.bench.runner.prompts import prompt_maker, typed_texts
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess, effective_config

_BLOCK_SIZES = {1: 8, 16: 64}
"""Prompts in a block, by concurrency."""
_WARM_UP = 64
_PREFIX_CHARS, _SUFFIX_CHARS = 1500, 400
_OVERRIDES = (*SERVES_ALL, "engine.nice=0", "speculation.mode=fixed")
_SERVER = "server"

KeyPair = tuple[BenchPrompt, BenchPrompt]
"""Two successive keys in a document, of which the second counts."""
_Contestant = ServerProcess | BareEngine | VllmServe
Blocks = dict[str, list[Block]]
"""By contestant; the same place in two lists is the same round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    requests: int = option(96, "Requests one at a time.", click.IntRange(8), quick=8)
    concurrent_requests: int = option(384, "Requests 16 at a time.", click.IntRange(64), quick=64)
    max_tokens: int = option(48, "", click.IntRange(8))
    seed: int = option(0, "Which texts are completed.", int)

    def num_keys(self, concurrency: int) -> int:
        """Return the number of keys of a concurrency, in whole blocks."""
        size, wanted = _BLOCK_SIZES[concurrency], self.requests if concurrency == 1 else self.concurrent_requests
        return wanted // size * size


@benchmark(_Options, aiohttp.ClientError, InvalidRequestError)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure the server against its bare engine and against `vllm serve`. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.overhead --config deploy/local/server.toml --quick
    """
    effective = effective_config(options.config, options.overrides)
    found = asyncio.run(_measure(effective, options, console))
    by_concurrency = {str(concurrency): _figures(blocks) for concurrency, blocks in found.items()}
    worst = _worst(list(by_concurrency.values()))
    for concurrency, blocks in found.items():
        by_concurrency[str(concurrency)]["contestants"] = {name: summary(each) for name, each in blocks.items()}
    return worst | {"by_concurrency": by_concurrency}


async def _measure(effective: dict[str, Any], options: _Options, console: Console) -> dict[int, Blocks]:
    async with Contest(console) as contest:
        overrides, peer_config = (*_OVERRIDES, *options.overrides), {"engine_args": peer_args(effective["engine_args"])}
        server = await contest.start("the server", ServerProcess, options.config, overrides, _SERVER)
        engine = await contest.start("the engine alone", BareEngine, effective | peer_config)
        serve = await contest.start("vllm serve", VllmServe, effective)
        contestants: list[_Contestant] = [server, engine, serve]
        keys = await asyncio.to_thread(_keys, effective, options)
        await _round(contest, contestants, keys[:_WARM_UP], max(_BLOCK_SIZES))
        results: dict[int, Blocks] = {}
        rest = keys[_WARM_UP:]
        with Progress(console=console) as progress:
            for concurrency, size in _BLOCK_SIZES.items():
                num_keys = options.num_keys(concurrency)
                blocks = [rest[start : start + size] for start in range(0, num_keys, size)]
                rest = rest[num_keys:]
                results[concurrency] = {each.name: [] for each in contestants}
                for number, block in enumerate(progress.track(blocks, description=f"{concurrency} at a time")):
                    others = contestants[:0:-1] if number % 2 else contestants[1:]
                    answers = await _round(contest, [contestants[0], *others], block, concurrency)
                    for name, answer in answers.items():
                        results[concurrency][name].append(answer)
    return results


def _keys(effective: Mapping[str, Any], options: _Options) -> list[KeyPair]:
    """Return two keys of each document, with the token ids that the server gives its engine."""
    count = _WARM_UP + sum(map(options.num_keys, _BLOCK_SIZES))
    texts = typed_texts(count, 2, prefix_chars=_PREFIX_CHARS, suffix_chars=_SUFFIX_CHARS, seed=options.seed)
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


async def _round(
    contest: Contest, in_turn: Sequence[_Contestant], keys: Sequence[KeyPair], concurrency: int
) -> dict[str, Block]:
    """Give all contestants the same prompts, the server first; the others stop at its completion lengths."""
    earlier = [replace(key, max_tokens=1) for key, _ in keys]
    counted = [key for _, key in keys]
    answers: dict[str, Block] = {}
    for each in in_turn:
        await contest.give_turn(each.process)
        await each.run(earlier, concurrency)
        answers[each.name] = await each.run(counted, concurrency)
        if each is in_turn[0]:
            samples = answers[each.name].samples
            counted = [prompt.ended_like(sample) for prompt, sample in zip(counted, samples, strict=True)]
    return answers


def summary(blocks: Sequence[Block]) -> dict[str, float]:
    """Summarise the blocks of one contestant; nan for missing data.

    `stream_tokens_per_s_p50` is the median rate of one request after its first token, `tokens_per_s_p50` the median
    over blocks of the rate of all requests together. `cached_share` is of the prompt tokens, `acceptance` of the
    drafted ones.
    """
    samples = [sample for block in blocks for sample in block.samples]
    ttft_ms = [sample.ttft_ms for sample in samples if sample.ttft_ms is not None]
    return {
        "ttft_ms_p50": percentile(ttft_ms, 50),
        "ttft_ms_p95": percentile(ttft_ms, 95),
        "stream_tokens_per_s_p50": percentile([rate for each in samples if (rate := each.tokens_per_s)], 50),
        "tokens_per_s_p50": percentile([block.tokens_per_s for block in blocks], 50),
        "cached_share": share(sum(s.cached_prompt_tokens for s in samples), sum(s.prompt_tokens for s in samples)),
        "acceptance": share(sum(s.accepted_draft_tokens for s in samples), sum(s.drafted_tokens for s in samples)),
    }


def _figures(blocks: Blocks) -> dict[str, Any]:
    ttft = {name: [sample.ttft_ms for block in own for sample in block.samples] for name, own in blocks.items()}
    rates = {name: [block.tokens_per_s for block in own] for name, own in blocks.items()}
    return {
        "ttft_added_ms_p50": median_of_pairs(ttft[_SERVER], ttft[BareEngine.name], ratio=False),
        "tokens_per_s_ratio_to_engine": median_of_pairs(rates[_SERVER], rates[BareEngine.name]),
        "ttft_ratio_to_vllm_serve": median_of_pairs(ttft[_SERVER], ttft[VllmServe.name]),
        "tokens_per_s_ratio_to_vllm_serve": median_of_pairs(rates[_SERVER], rates[VllmServe.name]),
    }


def median_of_pairs(first: Iterable[float | None], second: Iterable[float | None], *, ratio: bool = True) -> float:
    """Return the median of first / second, or of first - second, over pairs measured one after the other.

    A slow drift of the machine cancels. A pair with a None does not count.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return percentile([a / b if ratio else a - b for a, b in pairs], 50)


def _worst(by_concurrency: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in by_concurrency[0]:
        values = [value for at in by_concurrency if not math.isnan(value := at[name])]
        found[name] = (min if name.startswith("tokens_per_s") else max)(values, default=None)
    return found


if __name__ == "__main__":
    main()
