"""How many editors a 13B-sized INT8 target with a 1B-sized draft serves on one GPU at the objective.

The whole server runs, with the load tester's capacity search on it. The models have no weights, so their text means
nothing, and the server's text rules end many answers early; prompts, queueing and steps are real.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.bench.gpu.models import DRAFT, DRAFT_CONTEXT, TARGET, TINY_DRAFT, TINY_TARGET, write_served_model
from loadtest.bench.gpu.results import Ways
from loadtest.bench.gpu.ways import WORKER_EXTENSION, Size, acceptance_by_position
from loadtest.bench.runner.server import ServerProcess
from loadtest.processes.child import StartError

OBJECTIVE = "pause_ttft_ms_p95<200"
_SCHEDULE = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True, slots=True)
class SessionsPlan:
    """What is searched."""

    scenario: str = "editors-10k"
    from_sessions: int = 250
    to_sessions: int = 20_000
    tolerance: float = 0.1
    duration_s: float = 20.0
    k: int = 5
    acceptance: float = 0.82
    max_num_seqs: int = 128
    gpu_hour_usd: float = 3.5

    def overrides(self, folder: Path, size: Size) -> list[str]:
        """Return the server's settings, for models in `folder`."""
        draft = str(folder / "draft")
        drafts: dict[str, Any] = {"method": "draft_model", "model": draft, "num_speculative_tokens": self.k}
        drafts[_SCHEDULE] = [[1, self.max_num_seqs, self.k]]
        if not size.is_tiny:
            rates = acceptance_by_position(self.acceptance, self.k)
            drafts |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        return [
            f"engine.model={folder / 'target'}",
            f"engine.draft_model={draft}",
            f"engine.num_speculative_tokens={self.k}",
            f"engine.max_model_len={1024 if size.is_tiny else DRAFT_CONTEXT}",
            f"engine.max_num_seqs={self.max_num_seqs}",
            "speculation.mode=fixed",
            f"scheduling.max_slots={self.max_num_seqs}",
            "engine.vllm.load_format=dummy",
            f"engine.vllm.worker_extension_cls={WORKER_EXTENSION}",
            *(f"engine.vllm.speculative_config.{key}={json.dumps(value)}" for key, value in drafts.items()),
        ]

    def search(self, address: str) -> list[str]:
        """Return the command of the search."""
        return [
            sys.executable, "-m", "loadtest", "capacity", self.scenario, "--json",
            "--target", f"grpc://{address}", "--gate", OBJECTIVE,
            "--from", str(self.from_sessions), "--to", str(self.to_sessions), "--repeats", "1",
            "--tolerance", str(self.tolerance), "--duration", str(self.duration_s),
            "--set", f"criteria.gpu_hour_usd={self.gpu_hour_usd}",
        ]  # fmt: skip


_SEARCH = "search"


async def measure(
    plan: SessionsPlan,
    folder: Path,
    config: Path,
    overrides: Sequence[str],
    size: Size,
    console: Console,
    measured: Ways,
) -> None:
    """Start the server and search."""
    if _SEARCH in measured:
        return
    write_served_model(folder / "target", TINY_TARGET if size.is_tiny else TARGET)
    write_served_model(folder / "draft", TINY_DRAFT if size.is_tiny else DRAFT)
    with console.status("starting the server"):
        server = ServerProcess(config, (*plan.overrides(folder, size), *overrides))
    try:
        child = await asyncio.create_subprocess_exec(
            *plan.search(server.ready["address"]), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await child.communicate()
    finally:
        server.stop()
    lines = output.decode().splitlines()
    if not lines:
        msg = f"the capacity search ended with status {child.returncode}; why is above"
        raise StartError(msg)
    measured[_SEARCH] = json.loads(lines[-1])


def figures(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sessions, whether the generator was the limit, and the figures of the largest run that passed."""
    found = measured[_SEARCH]
    passed = [each for each in found["trials"] if each["is_passed"]]
    best = max(passed, key=lambda each: each["sessions"], default=None)
    return {
        "sessions": found["sessions"],
        "fails_at": found["fails_at"],
        "is_generator_bound": found["is_generator_bound"],
        "objective": OBJECTIVE,
        "figures": best["figures"] if best else {},
    }
