"""Prompts as the server builds them, from its own prompt command: nothing is imported from it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from target_model.errors import EvaluationError
from target_model.tasks import Task

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
    command = [sys.executable, "-m", "completion_server.prompt", str(model)]
    command += ["--settings", json.dumps({"max_prompt_tokens": max_prompt_tokens})]
    requests = "".join(json.dumps(_request(number, task)) + "\n" for number, task in enumerate(tasks))
    done = subprocess.run(command, input=requests, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EvaluationError(f"the server builds no prompts for {model}: {done.stderr.strip()[-300:]}")
    answers = [json.loads(line) for line in done.stdout.splitlines()[1:]]
    refused = next((answer["error"] for answer in answers if "error" in answer), None)
    if refused:
        raise EvaluationError(f"a task's prompt does not fit: {refused}")
    return Prompts([answer["token_ids"] for answer in answers], answers[0]["stop_token_ids"])


def _request(number: int, task: Task) -> dict[str, str]:
    suffix = f"\n{task.suffix}" if task.suffix else ""
    return {
        "prefix": task.prefix,
        "suffix": suffix,
        "session": str(number),
        "document_uri": "file:///task.py",
        "mode": "multi_line",  # A newline ends no completion: `tasks.only_line` cuts out what is asked for.
    }
