"""Measures whether the time to a first text (TTFT) tells what another tenant has asked.

In each trial a victim asks for a completion of one document or of another, and an attacker asks for that of the first
one, once the victim has its answer (prefix cache, completion cache) or its first text (single flight: one generation
for both). A classifier guesses from the attacker's TTFT alone which document it was. Its AUC, the area under the ROC
curve, is the chance that it ranks a pair of trials rightly: 0.5 knows nothing, 1 everything. The same attacker within
the victim's tenant, which shares caches, shows that the classifier would find a leak. Hits are answers that have
anything in common with another's: cached prompt tokens, a kept completion, a joined generation (scripted engine only).

The service, its caches and the scheduler are the real ones, in virtual time, on the scripted engine with a simulated
prefix cache and steps that vary by a tenth. With --config it is a real server over gRPC.
"""

import asyncio
import itertools
import random
import string
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import grpc
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.bench.runner.benchmark import EXISTING_FILE, Options, Result, benchmark, option
from loadtest.bench.runner.figures import shown, text_table
from loadtest.bench.runner.server import ONE_CACHE, SERVES_ALL, ServerProcess
from loadtest.simulation import virtual_time
from loadtest.simulation.tenants import Ask, Seen, World, run_tenants

PREFIX, COMPLETION, FLIGHT = CACHES = ("prefix_cache", "completion_cache", "single_flight")
VICTIM = "acme", "victim"
_OTHER_TENANT = "initech"
_TRIALS, _REAL_TRIALS, _CONTROL_SHARE, _FEWEST = 10_000, 1_000, 0.1, 20
_LINES, _MAX_TOKENS = 20, 4
_KEPT = (pb.CACHE_LEVEL_LOCAL, pb.CACHE_LEVEL_SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Options):
    config: Path | None = option(None, "Measure a real server with this TOML file.", EXISTING_FILE)
    trials: int | None = option(
        None, "Of each cache; a tenth within a tenant.  [default: 10,000; with --config 1,000]", click.IntRange(_FEWEST)
    )
    seed: int = option(0, "Of the texts and of the scripted engine's times.", int)


@benchmark(_Options, grpc.aio.AioRpcError)
def main(options: _Options, _console: Console) -> Result:
    """Measure what the time to a first text tells of other tenants. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.isolation --config deploy/local/server.toml
    """
    if options.config is None:
        found = virtual_time.run(measure(run_tenants(options.seed), options.trials or _TRIALS, options.seed))
    else:
        found = asyncio.run(measure(_real(options.config), options.trials or _REAL_TRIALS, options.seed))
    names = ("auc", "hits", "auc_within_tenant", "hits_within_tenant")
    rows = tuple((cache, *(shown(found[f"{cache}_{name}"]) for name in names)) for cache in CACHES)
    return Result(found, [text_table("What a TTFT tells", ("", *names), rows)])


async def measure(world: World, trials: int, seed: int, caches: Sequence[str] = CACHES) -> dict[str, float]:
    """Return the AUC and the number of hits for each cache, across tenants and within one."""
    chance, found = random.Random(f"{seed} texts"), dict[str, float]()
    controls = max(_FEWEST, round(trials * _CONTROL_SHARE))
    async with world as ask:
        for cache, (suffix, tenant, num) in itertools.product(
            caches, (("", _OTHER_TENANT, trials), ("_within_tenant", VICTIM[0], controls))
        ):
            seen = [await _trial(ask, cache, tenant, chance, is_asked=number % 2 == 0) for number in range(num)]
            asked, not_asked = ([each.ttft_s for each in seen[first::2]] for first in (0, 1))
            found[f"{cache}_auc{suffix}"] = auc(asked, not_asked)
            found[f"{cache}_hits{suffix}"] = sum(each.is_hit for each in seen)
    return found


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the AUC of a classifier that takes smaller values for positive, or greater ones if that is better."""
    ranked = sorted(negative)
    rights = sum(len(ranked) - (bisect_left(ranked, each) + bisect_right(ranked, each)) / 2 for each in positive)
    share = rights / (len(positive) * len(negative))
    return max(share, 1 - share)


async def trial(ask: Ask, cache: str, asked: str, attacker: tuple[str, str], document: str) -> Seen:
    """Return what an attacker, a tenant's user, sees of a document's completion after the victim has `asked`."""
    has_text, is_kept = asyncio.Event(), cache != PREFIX
    victim = asyncio.ensure_future(ask(*VICTIM, asked, is_kept, has_text.set))
    victim.add_done_callback(lambda _asked: has_text.set())  # it may fail
    await (has_text.wait() if cache == FLIGHT else victim)
    seen = await ask(*attacker, document, is_kept, lambda: None)
    await victim
    return seen


async def _trial(ask: Ask, cache: str, tenant: str, chance: random.Random, *, is_asked: bool) -> Seen:
    document, other = _code(chance), _code(chance)
    return await trial(ask, cache, document if is_asked else other, (tenant, "attacker"), document)


def _code(chance: random.Random) -> str:
    words = ("".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(3 * _LINES))
    return "".join(f"{a} = {b}({c})\n" for a, b, c in zip(words, words, words, strict=True)) + "result ="


@asynccontextmanager
async def _real(config: Path) -> AsyncIterator[Ask]:
    """Run a server with one tenant-wide cache for each tenant."""
    numbers = itertools.count(1)
    with ServerProcess(config, (*SERVES_ALL, *ONE_CACHE, "cache.enabled=true")) as server:
        async with grpc.aio.insecure_channel(server.ready["address"]) as channel:
            stub = CompletionServiceStub(channel)

            async def ask(tenant: str, user: str, text: str, is_kept: bool, on_text: Callable[[], None]) -> Seen:
                message = pb.CompleteRequest(
                    session_id="s", sequence=next(numbers), document_uri="file:///a.py", prefix=text,
                    max_tokens=_MAX_TOKENS, mode=pb.MODE_MULTI_LINE, without_completion_cache=not is_kept,
                )  # fmt: skip
                begin, first, usage = time.perf_counter(), 0.0, pb.Usage()
                names = (("x-tenant-id", tenant), ("x-user-id", user))
                async for event in stub.Complete(message, metadata=names, timeout=30):
                    if not first:
                        first = time.perf_counter()
                        on_text()
                    usage = event.end.usage
                return Seen(first - begin, bool(usage.cached_prompt_tokens or usage.cache_level in _KEPT))

            yield ask


if __name__ == "__main__":
    main()
