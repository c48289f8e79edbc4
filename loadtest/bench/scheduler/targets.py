"""The targets of the scheduler benchmark: their servers, and the turns that these take."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.bench.common.contest import Pausable, Turns
from loadtest.bench.common.server import SERVES_ALL, Server, effective_config
from loadtest.bench.peers.vllm_serve import VllmServe
from loadtest.bench.scheduler.report import PLAIN, SCHEDULER, VLLM_SERVE
from loadtest.targets import ClientSettings, Target, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.http import HttpTarget

PLAIN_OVERRIDES = (
    *SERVES_ALL,
    "scheduling.supersede=false",
    "scheduling.order=first_come",
    "scheduling.typing_through=false",
)
"""Overrides that turn the server's policies off."""

_SERVERS: tuple[tuple[str, tuple[str, ...]], ...] = ((SCHEDULER, ()), (PLAIN, PLAIN_OVERRIDES))


class TargetTurns:
    """The turns of the targets' servers."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._servers: dict[str, Pausable] = {}

    def add(self, target: Target, server: Pausable) -> None:
        """Add a target and suspend its server."""
        self._turns.add(server)
        self._servers[target.name] = server

    async def give_to(self, target: Target) -> None:
        """Let a target's server run, and no other."""
        await self._turns.give(self._servers[target.name])


async def start_targets(
    stack: AsyncExitStack,
    config: Path,
    overrides: Sequence[str],
    names: Sequence[str],
    settings: ClientSettings,
    stop_token_ids: Sequence[int],
    console: Console,
) -> tuple[list[Target], TargetTurns]:
    """Start the targets of these names, each with its server, and suspend the servers.

    `cancels_at_key` is a setting of the scheduler's editors: those of the plain server never cancel, those of
    `vllm serve` always do.

    Raises:
        StartError: a server did not start.

    """
    targets: list[Target] = []
    turns = TargetTurns()
    for name, own in _SERVERS:
        if name not in names:
            continue
        with console.status(f"starting: {name}"):
            server = await stack.enter_async_context(Server(config, (*overrides, *own), name, has_metrics=True))
        metrics_url = f"http://{server.ready['metrics_address']}/metrics"
        cancels = settings.cancels_at_key and name == SCHEDULER
        spec = TargetSpec(name, "grpc", (server.ready["address"],), metrics_url=metrics_url)
        target = GrpcTarget(spec, replace(settings, cancels_at_key=cancels))
        targets.append(await stack.enter_async_context(target))
        turns.add(target, server.process)
    if VLLM_SERVE not in names:
        return targets, turns
    with console.status(f"starting: {VLLM_SERVE}"):
        serve = await stack.enter_async_context(VllmServe(effective_config(config, overrides)))
    host = serve.url.removeprefix("http://")
    spec = TargetSpec(VLLM_SERVE, "openai+http", (host,), {"model": serve.model}, metrics_url=f"{serve.url}/metrics")
    http = HttpTarget(spec, replace(settings, cancels_at_key=True), _vllm_body(stop_token_ids))
    targets.append(await stack.enter_async_context(http))
    turns.add(http, serve.process)
    return targets, turns


def _vllm_body(stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """Return the body fields besides the prompt: the end tokens, and token counts in each chunk."""
    return {
        "stop_token_ids": list(stop_token_ids),
        "add_special_tokens": False,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
