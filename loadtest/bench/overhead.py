"""Measures the server's overhead over its engine, and compares it with `vllm serve`: TTFT and tokens/s.

Three processes run the same model with the same engine arguments and take turns, block by block: this project's server,
vLLM's AsyncLLM called directly, and `vllm serve` over HTTP. Everything between an editor and the engine counts as the
server's overhead, gRPC and the client's own work included. The peers get the token ids of the server's prompts, and
generate at most as many tokens as its text rules left. Every request is a key in a document that all had just before.

TTFT is the time to the first visible text. Its figures are medians over pairs of the same prompt; those of tokens/s are
medians over pairs of neighbouring blocks. A figure with one name for 1 and for 16 requests is the worse of the two.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from completion_server.core.errors import InvalidRequestError
from loadtest.bench.bare import BareEngine, BenchPrompt, Block, Sample, peer_args
from loadtest.bench.peers import VllmServe
from loadtest.bench.runner.benchmark import ServerOptions, benchmark, option, percentile
from loadtest.bench.runner.contest import Contest, EditingContestant, ask_in_turn, rotated
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess, ServerPrompts, effective_config, server_contestant
from loadtest.targets import ClientSettings
from loadtest.targets.record import Record
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace
from loadtest.tuning.replay import traffic_of

_BLOCK_SIZES = {1: 8, 16: 64}
"""Prompts in a block, by concurrency."""
_WARM_UP = 64
_DOCUMENTS = {"prefix_chars": 1500, "suffix_chars": 400}
_OVERRIDES = (*SERVES_ALL, "engine.nice=0", "speculation.mode=fixed")
_SERVER = "server"

Call = Callable[[Trace, int], Awaitable[Block]]
"""Gives a contestant the keys of a trace, so many at a time."""
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


@benchmark(_Options, InvalidRequestError)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure the server against its bare engine and against `vllm serve`. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.overhead --config deploy/local/server.toml --quick
    """
    found = asyncio.run(_measure(options, console))
    by_concurrency: dict[str, dict[str, Any]] = {str(each): _figures(blocks) for each, blocks in found.items()}
    worst = _worst(list(by_concurrency.values()))
    for concurrency, blocks in found.items():
        by_concurrency[str(concurrency)]["contestants"] = {name: _summary(each) for name, each in blocks.items()}
    return worst | {"by_concurrency": by_concurrency}


async def _measure(options: _Options, console: Console) -> dict[int, Blocks]:
    effective = effective_config(options.config, options.overrides)
    prompts = ServerPrompts(effective)
    settings = ClientSettings(options.max_tokens, cancels_at_key=False, use_completion_cache=False)
    async with Contest(console) as contest:
        overrides, peer_config = (*_OVERRIDES, *options.overrides), {"engine_args": peer_args(effective["engine_args"])}
        server = await contest.start("the server", ServerProcess, options.config, overrides, _SERVER)
        engine = await contest.start("the engine alone", BareEngine, effective | peer_config)
        serve = await contest.start("vllm serve", VllmServe, effective)
        calls: dict[str, Call] = {
            _SERVER: partial(_call, contest, server_contestant(server, settings)),
            BareEngine.name: partial(_call_engine, contest, engine, prompts.stop_token_ids),
            VllmServe.name: partial(
                _call, contest, serve.contestant(VllmServe.name, prompts, settings, counts_tokens=True)
            ),
        }
        results: dict[int, Blocks] = {}
        with Progress(console=console) as progress:
            blocks = await _blocks(prompts, options)
            for number, (concurrency, trace) in enumerate(progress.track(blocks, description="asking")):
                answers = await _round(calls, trace, concurrency, number)
                for name, answer in answers.items() if number else ():  # the first one warms up
                    results.setdefault(concurrency, {}).setdefault(name, []).append(answer)
    return results


async def _round(calls: Mapping[str, Call], trace: Trace, concurrency: int, number: int) -> dict[str, Block]:
    """Give all contestants the same keys, the server first; the others stop at its completion lengths."""
    answers = {_SERVER: await calls[_SERVER](trace, concurrency)}
    sessions = [
        replace(session, requests=(replace(session.requests[0], max_tokens=max(1, sample.num_tokens)),))
        for session, sample in zip(trace.sessions, answers[_SERVER].samples, strict=True)
    ]
    for name in rotated([BareEngine.name, VllmServe.name], number):
        answers[name] = await calls[name](replace(trace, sessions=tuple(sessions)), concurrency)
    return answers


async def _call(contest: Contest, contestant: EditingContestant, trace: Trace, concurrency: int) -> Block:
    async with contest.target_of(contestant) as target:
        records, wall_s = await ask_in_turn(target, trace, concurrency)
    return Block(tuple(map(_sample, records)), wall_s)


def _sample(record: Record) -> Sample:
    first_s = record.first_text_at_s
    return Sample(None if first_s is None else (first_s - record.sent_at_s) * 1000, record.completion_tokens)


async def _call_engine(
    contest: Contest, engine: BareEngine, stop_token_ids: tuple[int, ...], trace: Trace, concurrency: int
) -> Block:
    await contest.give_turn(engine.process)
    engine.run([BenchPrompt(each.opening.token_ids, 1) for each in trace.sessions], concurrency)
    keys = [each.requests[0] for each in trace.sessions]
    return engine.run([BenchPrompt(key.token_ids, key.max_tokens, stop_token_ids) for key in keys], concurrency)


async def _blocks(prompts: ServerPrompts, options: _Options) -> list[tuple[int, Trace]]:
    """Return the concurrency and the trace of each block, of the warm-up first. Each session asks once."""
    sizes = [(max(_BLOCK_SIZES), _WARM_UP)]
    for concurrency, size in _BLOCK_SIZES.items():
        sizes += [(concurrency, size)] * (options.num_keys(concurrency) // size)
    scenario = Scenario.of({"name": "overhead", "seed": options.seed, "documents": _DOCUMENTS})
    whole = await traffic_of(scenario, sum(size for _, size in sizes), "keys")
    sessions = [replace(each, requests=each.requests[:1]) for each in whole.sessions]
    whole = await asyncio.to_thread(prompts.sends, replace(whole, sessions=tuple(sessions)))
    rest = iter(whole.sessions)
    return [(at_once, replace(whole, sessions=tuple(next(rest) for _ in range(size)))) for at_once, size in sizes]


def _summary(blocks: Sequence[Block]) -> dict[str, float]:
    ttft_ms = [sample.ttft_ms for block in blocks for sample in block.samples if sample.ttft_ms is not None]
    tokens_per_s = percentile([block.tokens_per_s for block in blocks], 50)
    return {
        "ttft_ms_p50": percentile(ttft_ms, 50),
        "ttft_ms_p95": percentile(ttft_ms, 95),
        "tokens_per_s_p50": tokens_per_s,
    }


def _figures(blocks: Blocks) -> dict[str, Any]:
    ttft = {name: [sample.ttft_ms for block in own for sample in block.samples] for name, own in blocks.items()}
    rates = {name: [block.tokens_per_s for block in own] for name, own in blocks.items()}
    added = [a - b for a, b in _pairs(ttft[_SERVER], ttft[BareEngine.name])]
    found = {"ttft_added_ms_p50": percentile(added, 50)}
    for name, measured, peer in (
        ("tokens_per_s_ratio_to_engine", rates, BareEngine.name),
        ("ttft_ratio_to_vllm_serve", ttft, VllmServe.name),
        ("tokens_per_s_ratio_to_vllm_serve", rates, VllmServe.name),
    ):
        found[name] = percentile([a / b for a, b in _pairs(measured[_SERVER], measured[peer])], 50)
    return found


def _pairs(first: Sequence[float | None], second: Sequence[float | None]) -> list[tuple[float, float]]:
    """Return the pairs measured one after the other, of which a slow drift of the machine affects both."""
    return [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]


def _worst(by_concurrency: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in by_concurrency[0]:
        values = [value for at in by_concurrency if not math.isnan(value := at[name])]
        found[name] = (min if name.startswith("tokens_per_s") else max)(values, default=None)
    return found


if __name__ == "__main__":
    main()
