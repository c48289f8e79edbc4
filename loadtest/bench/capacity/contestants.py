"""The contestants: this server with and without its completion cache, `vllm serve` in two ways, and llama.cpp."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.peers.llama_server import LlamaServer
from loadtest.bench.peers.vllm_serve import VllmServe, vllm_contestant
from loadtest.bench.runner.editing import EditingContestant, ServerPrompts, server_contestant
from loadtest.bench.runner.schedule import Contest
from loadtest.bench.runner.server import ServerProcess
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.http import HttpTarget

OURS, OURS_UNCACHED = "this server", "this server, completion cache off"
VLLM, VLLM_SAME_PROMPTS, LLAMA = VllmServe.name, "vllm serve, our prompts", LlamaServer.name
NAMES = (OURS, OURS_UNCACHED, VLLM, VLLM_SAME_PROMPTS, LLAMA)


async def start(
    contest: Contest,
    config: Path,
    overrides: Sequence[str],
    effective: Mapping[str, Any],
    names: Collection[str],
    llama_server: Path | None,
    settings: ClientSettings,
) -> list[EditingContestant]:
    """Start the contestants of these names; llama.cpp's is left out without its binary.

    Raises:
        StartError: one did not start.
        ConfigError: the prompts can't be made.

    """
    found: list[EditingContestant] = []
    for name, cache in caches(effective).items():
        if name in names:
            own = (*overrides, f"cache.enabled={cache}")
            found.append(server_contestant(await contest.start(name, ServerProcess, config, own, name), settings))
    if {VLLM, VLLM_SAME_PROMPTS} & set(names):
        prompts = ServerPrompts(effective)
        about = f"{VLLM}, which may compile the model"
        serve = await contest.start(about, VllmServe, effective, has_own_defaults=True)
        both = (
            vllm_contestant(VLLM, serve, prompts, settings, has_window=True),
            vllm_contestant(VLLM_SAME_PROMPTS, serve, prompts, settings),
        )
        found += [each for each in both if each.name in names]
    if LLAMA in names and llama_server is not None:
        llama = await contest.start(LLAMA, LlamaServer, llama_server, effective)
        spec = TargetSpec(LLAMA, "llama+http", (llama.host,))
        found.append(EditingContestant(LLAMA, llama.process, lambda _run: HttpTarget(spec, settings), has_window=True))
    return found


def caches(effective: Mapping[str, Any]) -> dict[str, str]:
    """Return `cache.enabled` of each of this server's contestants. A server of a benchmark has no cache by default."""
    return {OURS: json.dumps(effective["cache"]["enabled"]), OURS_UNCACHED: "false"}
