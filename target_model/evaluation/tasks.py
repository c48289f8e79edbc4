"""Reads HumanEval and its single-line infilling set from the files that their authors publish.

HumanEval: Chen et al., "Evaluating Large Language Models Trained on Code" (2021). Single-line infilling: Bavarian et
al., "Efficient Training of Language Models to Fill in the Middle" (2022): one line of a solution is missing.
"""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from target_model.core.errors import EvaluationError
from target_model.sandbox.runner import CheckedProgram


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
