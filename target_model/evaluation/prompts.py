"""Prompts as the server builds them, from its own prompt command: nothing is imported from it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from target_model.core.errors import EvaluationError
from target_model.evaluation.tasks import Task

MAX_PROMPT_TOKENS = 896
"""Of a task's prompt: what the embedded models can hold, less a completion."""


@dataclass(frozen=True)
class Prompts:
    """Token ids of prompts, and the tokens at which the server ends their completions."""

    token_ids: list[list[int]]
    stops: list[int]


def build_prompts(model: Path, tasks: Sequence[Task], max_prompt_tokens: int = MAX_PROMPT_TOKENS) -> Prompts:
    """Every task's prompt; there is at least one. Where a line is missing the cursor stands on an empty line.

    Raises EvaluationError with the server's words when it builds none.
    """
    requests = "".join(json.dumps(_request(number, task)) + "\n" for number, task in enumerate(tasks))
    answers = _ask(model, requests, max_prompt_tokens)[1:]
    refused = next((answer["error"] for answer in answers if "error" in answer), None)
    if refused:
        raise EvaluationError(f"a task's prompt does not fit: {refused}")
    return Prompts([answer["token_ids"] for answer in answers], answers[0]["stop_token_ids"])


def file_marker(model: Path) -> str:
    """The token that opens a file in the model's family, "" where it has none; EvaluationError as `build_prompts`."""
    marker: str = _ask(model, "", MAX_PROMPT_TOKENS)[0]["template"]["file"]
    return marker


def _ask(model: Path, requests: str, max_prompt_tokens: int) -> list[dict[str, Any]]:
    """The answers of the server's prompt command, the one that tells the template first."""
    command = [sys.executable, "-m", "completion_server.prompt", str(model)]
    command += ["--settings", json.dumps({"max_prompt_tokens": max_prompt_tokens})]
    done = subprocess.run(command, input=requests, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EvaluationError(f"the server builds no prompts for {model}: {done.stderr.strip()[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _request(number: int, task: Task) -> dict[str, str]:
    suffix = f"\n{task.suffix}" if task.suffix else ""
    return {
        "prefix": task.prefix,
        "suffix": suffix,
        "session": str(number),
        "document_uri": "file:///task.py",
        "mode": "multi_line",  # A newline ends no completion: `tasks.only_line` cuts out what is asked for.
    }
