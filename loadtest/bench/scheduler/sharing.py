"""Measures whether users and tenants get their shares of an engine that is asked for twice what it can serve.

- An abuser comes beside the users: 20 times the rate of one of them, explicit requests, a new document each time, all
  of them live at once. The baseline is the same users with the same requests, without the abuser, on the whole engine,
  of which they are entitled to all but one user's share. Latencies are of answered requests.
- Two tenants of equally many users want twice what the engine can serve each; one has twice the weight.

Without --config this runs the server's service and scheduler in virtual time, in front of an engine with the step times
of `bench-steps` and with processors of its own. With it, it starts a server. Rate limits, which would hide the
scheduler, are off.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ServiceError
from loadtest.bench.runner.benchmark import EXISTING_FILE, POSITIVE, Options, Result, benchmark, option
from loadtest.bench.runner.figures import percentile, shown, text_table
from loadtest.bench.runner.loops import open_loop
from loadtest.bench.runner.prompts import CursorText, typed_texts
from loadtest.bench.runner.server import ServerProcess
from loadtest.bench.scheduler.__main__ import CONCURRENCIES, measure_capacity
from loadtest.simulation.sharing import AbuseModel, Service, beside_an_abuser, of_tenants, overload, pooled
from loadtest.traffic.scenario import Scenario

_RUNS = _CALM, _BESIDE, _ABUSER = "without an abuser", "beside an abuser", "abuser"
_WEIGHTS = {"light": 1.0, "heavy": 2.0}
_OVERRIDES = (
    "admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.trust_user_names=true",
    "scheduling.lane=session", f"scheduling.tenant_weights.heavy={_WEIGHTS['heavy']}",
)  # fmt: skip
_KEYS, _MAX_TOKENS, _TIMEOUT_S, _CAPACITY_S = 100, 24, 2.0, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Options):
    config: Path | None = option(None, "A server's TOML file, to measure that instead of a simulation.", EXISTING_FILE)
    seconds: float = option(20.0, "Length of a run.", click.FloatRange(1))
    rounds: int = option(3, "Runs with and without the abuser.", click.IntRange(1))
    users: int = option(32, "Users of the server; in the simulation it follows from the load.", click.IntRange(2))
    load: float = option(2.0, "Requests, as a multiple of those that the engine can serve.", POSITIVE)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Measure the shares of an abuser, of the users beside it and of two tenants. The last line is a JSON object."""
    with console.status("serving"):
        found = _simulate(options) if options.config is None else asyncio.run(_serve(options, options.config))
    p99_ms = {name: percentile(each.ttft_s, 99) * 1000 for name, each in found.items()}
    parts = {
        name: {"ttft_ms_p99": p99_ms[name], "answered_share": each.answered_share, "tokens": each.num_tokens}
        for name, each in found.items()
    }
    rows = [(name, *(shown(each, 3 if each < 1 else 0) for each in part.values())) for name, part in parts.items()]
    table = text_table("Shares of the engine", ("", "TTFT p99 ms", "answered", "tokens computed"), rows)
    calm, beside = found[_CALM], found[_BESIDE]
    figures: dict[str, Any] = {
        "others_p99_ratio": p99_ms[_BESIDE] / p99_ms[_CALM],
        "others_answered_ratio": beside.answered_share / calm.answered_share,
        "heavy_to_light_tokens": found["heavy"].num_tokens / max(1, found["light"].num_tokens),
        "parts": parts,
    }
    return Result(figures, [table])


def _simulate(options: _Options) -> dict[str, Service]:
    runs: dict[str, list[Service]] = {name: [] for name in _RUNS}
    for seed in range(options.rounds):
        workload = overload(options.load, options.seconds, seed)
        runs[_CALM].append(beside_an_abuser(workload, None)[0])
        for name, service in zip((_BESIDE, _ABUSER), beside_an_abuser(workload, AbuseModel()), strict=True):
            runs[name].append(service)
    tenants = of_tenants(overload(2 * options.load, options.seconds, 0), _WEIGHTS)
    return {name: pooled(each) for name, each in runs.items()} | tenants


async def _serve(options: _Options, config: Path) -> dict[str, Service]:
    scenario = Scenario.of({"name": "sharing", "editor": {"max_tokens": _MAX_TOKENS}})
    texts = typed_texts(options.users, _KEYS, prefix_chars=1500, suffix_chars=400, seed=0)
    runs: dict[str, list[Service]] = {name: [] for name in _RUNS}
    async with ServerProcess(config, _OVERRIDES) as server:
        address = server.ready["address"]
        by_concurrency = await measure_capacity(address, scenario, _CAPACITY_S)
        rate = options.load * max(by_concurrency[each] for each in CONCURRENCIES)
        users = _Users(address, options, texts)
        for number in range(options.rounds):
            runs[_CALM] += (await users.ask(f"{number} calm", {"": rate})).values()
            both = await users.ask(f"{number} abuse", {"": rate, _ABUSER: AbuseModel().rate * rate / options.users})
            runs[_BESIDE].append(both[""])
            runs[_ABUSER].append(both[_ABUSER])
        tenants = await users.ask("tenants", dict.fromkeys(_WEIGHTS, rate))
    return {name: pooled(each) for name, each in runs.items()} | dict(tenants)


class _Users:
    """Users with constant request rates, open loop; each types in a document of its own."""

    def __init__(self, address: str, options: _Options, texts: list[CursorText]) -> None:
        self._address, self._options, self._texts = address, options, texts

    async def ask(self, run: str, rates: Mapping[str, float]) -> Mapping[str, Service]:
        """Let the users of each tenant ask so often together; "abuser" is one user. Return how they were served."""
        async with asyncio.TaskGroup() as group:
            tasks = {tenant: group.create_task(self._ask(run, tenant, rate)) for tenant, rate in rates.items()}
        return {tenant: task.result() for tenant, task in tasks.items()}

    async def _ask(self, run: str, tenant: str, rate: float) -> Service:
        is_abuser, loop = tenant == _ABUSER, asyncio.get_running_loop()
        num_users = 1 if is_abuser else self._options.users
        names, group = [f"{tenant} {number}" for number in range(num_users)], "" if is_abuser else tenant
        clients = [CompletionClient(self._address, user=name, tenant=group) for name in names]

        async def one(number: int, _due: float) -> tuple[float | None, int]:
            user, begin, text = number % num_users, loop.time(), self._texts[number % len(self._texts)]
            times, usage = list[float](), pb.Usage()
            request = pb.CompleteRequest(
                session_id=f"{run} {number if is_abuser else user}", sequence=number + 1,
                document_uri=f"file:///{run}/{tenant}/{user}.py", language_id="python",
                prefix=f"# {run} {number if is_abuser else user}\n{text.prefix}",
                suffix=text.suffix, mode=pb.MODE_MULTI_LINE, max_tokens=_MAX_TOKENS,
                trigger=pb.TRIGGER_EXPLICIT if is_abuser else pb.TRIGGER_AUTOMATIC,
            )  # fmt: skip
            with contextlib.suppress(ServiceError):
                answer = await clients[user].complete(
                    request, timeout_s=_TIMEOUT_S, on_text=lambda _text: times.append(loop.time() - begin)
                )
                usage = pb.Usage() if answer.end is None else answer.end.usage
            num_tokens = usage.prompt_tokens - usage.cached_prompt_tokens + usage.completion_tokens
            return (times[0] if times else None), num_tokens

        answers = await open_loop(rate, self._options.seconds, one)
        for client in clients:
            await client.aclose()
        ttft_s = sorted(ttft for ttft, _ in answers if ttft is not None)
        return Service(ttft_s, len(ttft_s) / len(answers), sum(num for _, num in answers))


if __name__ == "__main__":
    main()
