"""How many editors a 13B-sized INT8 target with a 1B-sized draft serves on one GPU at the objective.

The whole server runs, with the load tester's capacity search on it. The models have no weights, so their text means
nothing, and the server's text rules end many answers early; prompts, queueing and steps are real.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench.gpu.engines import DRAFT_CONTEXT, SCHEDULE, WORKER_EXTENSION, Trial, draft_args, write_models
from loadtest.bench.runner.server import ServerProcess
from loadtest.processes.child import StartError

OBJECTIVE = "pause_ttft_ms_p95<200"


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

    def overrides(self, folder: Path, *, is_tiny: bool = False) -> list[str]:
        """Return the server's settings, for models in `folder`."""
        drafts = draft_args(folder / "draft", self.k, self.acceptance, is_tiny=is_tiny)
        drafts[SCHEDULE] = [[1, self.max_num_seqs, self.k]]
        return [
            f"engine.model={folder / 'target'}",
            f"engine.draft_model={folder / 'draft'}",
            f"engine.num_speculative_tokens={self.k}",
            f"engine.max_model_len={1024 if is_tiny else DRAFT_CONTEXT}",
            f"engine.max_num_seqs={self.max_num_seqs}",
            "speculation.mode=fixed",
            f"scheduling.max_slots={self.max_num_seqs}",
            "engine.vllm.load_format=dummy",
            f"engine.vllm.worker_extension_cls={WORKER_EXTENSION}",
            *(f"engine.vllm.speculative_config.{key}={json.dumps(value)}" for key, value in drafts.items()),
        ]

    async def measure(self, trial: Trial) -> dict[str, Any]:
        """Start the server and search; return `figures`. Raises StartError if the search has no result."""
        write_models(trial.folder, is_tiny=trial.is_tiny, is_served=True)
        with trial.console.status("starting the server"):
            overrides = (*self.overrides(trial.folder, is_tiny=trial.is_tiny), *trial.overrides)
            server = ServerProcess(trial.config, overrides)
        async with server:
            command = (sys.executable, "-m", "loadtest", *self._search(server.ready["address"]))
            child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            output, _ = await child.communicate()
        lines = output.decode().splitlines()
        if not lines:
            raise StartError(f"the capacity search ended with status {child.returncode}; why is above")
        return figures(json.loads(lines[-1]))

    def _search(self, address: str) -> list[str]:
        """Return the load tester's command for the search."""
        return [
            "capacity", self.scenario, "--json", "--target", f"grpc://{address}", "--gate", OBJECTIVE,
            "--from", str(self.from_sessions), "--to", str(self.to_sessions), "--repeats", "1",
            "--tolerance", str(self.tolerance), "--duration", str(self.duration_s),
            "--set", f"criteria.gpu_hour_usd={self.gpu_hour_usd}",
        ]  # fmt: skip


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sessions, whether the generator was the limit, and the figures of the largest run that passed."""
    passed = [each for each in found["trials"] if each["is_passed"]]
    best = max(passed, key=lambda each: each["sessions"], default=None)
    return {
        "sessions": found["sessions"],
        "fails_at": found["fails_at"],
        "is_generator_bound": found["is_generator_bound"],
        "objective": OBJECTIVE,
        "figures": best["figures"] if best else {},
    }
