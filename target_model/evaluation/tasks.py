"""Reads tasks and texts, and builds the prompts of tasks with the server's own prompt builder.

The tasks are HumanEval and its single-line infilling set, in the files that their authors publish. HumanEval: Chen et
al., "Evaluating Large Language Models Trained on Code" (2021). Single-line infilling: Bavarian et al., "Efficient
Training of Language Models to Fill in the Middle" (2022): one line of a solution is missing. Texts of code are files to
calibrate on, and held-out files to measure the loss of.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Caller, Mode, Request
from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings
from target_model.core import EvaluationError
from target_model.sandbox.runner import CheckedProgram

MAX_PROMPT_TOKENS = 896
"""Longest prompt of a task: the context of the embedded models, less a completion."""


@dataclass(frozen=True)
class Task:
    """A program with a gap: `prefix`, the missing `solution`, `suffix`; `check` fails for a wrong program."""

    id: str
    prefix: str
    suffix: str
    solution: str
    check: str
    entry_point: str = ""
    """The function that the check calls."""

    def with_completion(self, completion: str) -> CheckedProgram:
        """The program with a completion in the gap, and its check."""
        return CheckedProgram(
            program=self.prefix + completion + self.suffix,
            check=self.check,
            reference=self.prefix + self.solution + self.suffix,
            entry_point=self.entry_point,
        )


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks of a file of JSON lines, gzipped or not; EvaluationError when it is no such file."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        tasks = [_task(json.loads(line)) for line in data.decode().splitlines() if line.strip()]
    except OSError as error:
        raise EvaluationError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError) as error:
        raise EvaluationError(f"{path} is not a HumanEval file: {error!r}") from error
    if not tasks:
        raise EvaluationError(f"{path} has no tasks")
    return tasks


def _task(record: dict[str, str]) -> Task:
    check = f"\n{record['test']}\ncheck({record['entry_point']})\n"
    return Task(
        record["task_id"], record["prompt"], record.get("suffix", ""), record["canonical_solution"], check,
        record["entry_point"],
    )  # fmt: skip


def only_line(completion: str) -> str:
    """The first line of a completion, with its newline: the answer to a task with a missing line."""
    return completion.partition("\n")[0].rstrip() + "\n"


def only_function(completion: str) -> str:
    """A completion up to the first line at the left margin: the body of the function."""
    lines = completion.splitlines(keepends=True)
    kept = 0
    while kept < len(lines) and (kept == 0 or not lines[kept].strip() or lines[kept][0] in " \t"):
        kept += 1
    return "".join(lines[:kept]).rstrip("\n") + "\n"


def is_exact(task: Task, completion: str) -> bool:
    """Whether a completion equals the author's solution, apart from trailing blanks."""
    return completion.rstrip() == task.solution.rstrip()


def read_texts(path: Path) -> list[str]:
    """Read the texts of a file, JSON lines or Parquet with a column `text`; EvaluationError when it has none."""
    try:
        texts = _read_parquet(path) if path.suffix == ".parquet" else _read_lines(path)
    except (OSError, ValueError, KeyError) as error:
        raise EvaluationError(f"{path} has no texts that can be read: {error}") from error
    if not texts:
        raise EvaluationError(f"{path} has no texts")
    return texts


def _read_lines(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _read_parquet(path: Path) -> list[str]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # takes a while to import

    texts: list[str] = pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist()
    return texts


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
