"""The prompts of tasks, built by the server's own prompt builder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Caller, Mode, Request
from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings
from target_model.core.errors import EvaluationError
from target_model.evaluation.tasks import Task

MAX_PROMPT_TOKENS = 896
"""Longest prompt of a task: the context of the embedded models, less a completion."""


@dataclass(frozen=True)
class EvaluationPrompts:
    """Token ids of prompts, and the tokens at which the server ends their completions."""

    token_ids: list[list[int]]
    stops: list[int]


def build_prompts(model: Path, tasks: Sequence[Task], max_prompt_tokens: int = MAX_PROMPT_TOKENS) -> EvaluationPrompts:
    """Build every task's prompt; there is at least one. A missing line leaves the cursor on an empty line.

    Raises EvaluationError when the server builds no prompts for the model, or one does not fit.
    """
    builder = _load_builder(model, max_prompt_tokens)
    try:
        prompts = [builder.build(_request(number, task)) for number, task in enumerate(tasks)]
    except InvalidRequestError as error:
        raise EvaluationError(f"a task's prompt does not fit: {error.message}") from error
    return EvaluationPrompts([prompt.token_ids for prompt in prompts], list(prompts[0].stop_token_ids))


def file_marker(model: Path) -> str:
    """The token that opens a file in the model's family, "" if it has none; EvaluationError as `build_prompts`."""
    return _load_builder(model, MAX_PROMPT_TOKENS).template.file


def _load_builder(model: Path, max_prompt_tokens: int) -> PromptBuilder:
    settings = PromptSettings(max_prompt_tokens=max_prompt_tokens)
    try:
        return load_prompt_builder(str(model), max_prompt_tokens=max_prompt_tokens, settings=settings)
    except ConfigError as error:
        raise EvaluationError(f"the server builds no prompts for {model}: {error}") from error


def _request(number: int, task: Task) -> Request:
    return Request(
        id=f"task-{number}",
        caller=Caller(user="tasks", session=str(number)),
        sequence=number,
        document_uri="file:///task.py",
        language_id="",
        prefix=task.prefix,
        suffix=f"\n{task.suffix}" if task.suffix else "",
        max_tokens=1,
        received_at=0.0,
        mode=Mode.MULTI_LINE,  # A newline does not end the completion; `tasks.only_line` cuts the line out.
    )
