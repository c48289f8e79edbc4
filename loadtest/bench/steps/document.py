"""The document of a measurement, from which the simulation reads its service times."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from completion_server.engine.settings import EngineSettings
from loadtest.bench.steps.fit import StepFit
from loadtest.bench.steps.measure import CONTEXT_TOKENS, StepWork


def document_of(
    engine: EngineSettings, typical: Mapping[StepWork, float], fitted: StepFit, *, enforce_eager: bool | None
) -> dict[str, Any]:
    """Return the document. `enforce_eager` is vLLM's argument, None for an engine of another kind."""
    times = {name: round(seconds, 8) for name, seconds in asdict(fitted.times).items() if seconds}
    return {
        "source": "python -m loadtest.bench.steps",
        "machine": f"{os.cpu_count()} x {_processor()}",
        "date": datetime.now(UTC).date().isoformat(),
        "model": Path(engine.model).name or engine.kind,
        "enforce_eager": enforce_eager,
        "num_speculative_tokens": engine.num_speculative_tokens,
        "context_tokens": CONTEXT_TOKENS,
        "max_num_seqs": engine.max_num_seqs,
        "times": times,
        "median_error": round(fitted.error, 4),
        "points": [
            [work.num_decoding, work.num_prompts, work.prompt_tokens, round(seconds * 1000, 3)]
            for work, seconds in typical.items()
        ],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
