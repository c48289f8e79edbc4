"""Measures one attack on a fresh server: honest users' service before, during and after it, and the server's memory."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from loadtest.bench.attacks.honest import HonestService, honest_users, serve_for
from loadtest.bench.attacks.registry import ATTACKS
from loadtest.bench.common.server import ServerProcess
from loadtest.processes.child import Child

OVERRIDES = (
    "engine.kind=scripted",
    "engine.scripted_times=small_model_on_two_cores",
    # The defaults. Other benchmarks and deploy/local set no limit, because all their users have one address.
    "admission.max_sessions_per_peer=128",
    "admission.users_per_peer=2",
)
_MIB = 1024 * 1024
_SAMPLE_S = 0.05
_REPORT_S = 30.0


@dataclass(frozen=True, slots=True)
class Durations:
    """How long each phase takes, in seconds."""

    calm_s: float
    attack_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class AttackPhase:
    """The measurements of a phase."""

    service: HonestService
    peak_rss_bytes: int
    last_rss_bytes: int

    def figures(self, name: str) -> dict[str, float]:
        """Return the figures under the phase's name."""
        return {
            f"{name}_share_in_time": round(self.service.share_in_time, 4),
            f"{name}_peak_rss_mib": round(self.peak_rss_bytes / _MIB),
            f"{name}_last_rss_mib": round(self.last_rss_bytes / _MIB),
        }


@dataclass(frozen=True, slots=True)
class AttackMeasurement:
    """The measurements of one attack."""

    attack: str
    phases: Mapping[str, AttackPhase]
    counts: Mapping[str, int]

    def figures(self) -> dict[str, Any]:
        """Return the figures of all phases, and the attacker's counts."""
        found: dict[str, Any] = {"attack": self.attack}
        for name, phase in self.phases.items():
            found |= phase.figures(name)
        return found | {"attacker": dict(self.counts)}


async def measure(attack: str, config: Path, overrides: Sequence[str], durations: Durations) -> AttackMeasurement:
    """Start a server with users, attack it, and let it recover.

    Raises:
        StartError: the server or the attacker did not come up, or ended early.

    """
    server = ServerProcess(config, (*OVERRIDES, *ATTACKS[attack].overrides, *overrides))
    try:
        address, process = server.ready["address"], psutil.Process(server.pid)
        async with honest_users(address) as users:
            await serve_for(users, durations.calm_s / 2)  # allocates the memory that is allocated once
            calm = await _phase(process, serve_for(users, durations.calm_s))
            async with _attacking(attack, address) as counts:
                attacked = await _phase(process, serve_for(users, durations.attack_s))
            after = await _phase(process, serve_for(users, durations.after_s))
    finally:
        await asyncio.to_thread(server.stop)
    return AttackMeasurement(attack, {"calm": calm, "attack": attacked, "after": after}, counts)


@asynccontextmanager
async def _attacking(attack: str, address: str) -> AsyncIterator[dict[str, int]]:
    command = (sys.executable, "-m", "loadtest.bench.attacks.child", attack, address)
    counts: dict[str, int] = {}
    with Child(attack, command, is_piped=True) as child:
        yield counts
        counts |= await asyncio.to_thread(child.ask, {"end": True}, _REPORT_S)


async def _phase(process: psutil.Process, serving: Any) -> AttackPhase:  # noqa: ANN401 - a coroutine
    rss = [process.memory_info().rss]

    async def watch() -> None:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            rss.append(process.memory_info().rss)

    watching = asyncio.create_task(watch())
    try:
        service: HonestService = await serving
    finally:
        watching.cancel()
    return AttackPhase(service, max(rss), process.memory_info().rss)
