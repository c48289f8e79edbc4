"""Reads tasks and texts, builds the prompts of tasks with the server's own prompt builder, and scores completions.

The tasks are HumanEval and its single-line infilling set, in the files that their authors publish. HumanEval: Chen et
al., "Evaluating Large Language Models Trained on Code" (2021). Single-line infilling: Bavarian et al., "Efficient
Training of Language Models to Fill in the Middle" (2022): one line of a solution is missing. Texts of code are files to
calibrate on, and held-out files to measure the loss of.
"""

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Caller, Mode, Request
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.loading import load_prompt_builder
from completion_server.text.prompt.settings import PromptSettings
from target_model.core import TargetError
from target_model.sandbox import CheckedProgram, Limits, ProgramResult, run_programs

Z_95 = 1.959964
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
    """Read the tasks of a file of JSON lines, gzipped or not; TargetError when it is no such file."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        tasks = [_task(json.loads(line)) for line in data.decode().splitlines() if line.strip()]
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError) as error:
        raise TargetError(f"{path} is not a HumanEval file: {error!r}") from error
    if not tasks:
        raise TargetError(f"{path} has no tasks")
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
    """Read the texts of a file, JSON lines or Parquet with a column `text`; TargetError when it has none."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet  # type: ignore[import-untyped]  # takes a while to import

            texts: list[str] = pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist()
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            texts = [json.loads(line)["text"] for line in lines if line.strip()]
    except (OSError, ValueError, KeyError) as error:
        raise TargetError(f"{path} has no texts that can be read: {error}") from error
    if not texts:
        raise TargetError(f"{path} has no texts")
    return texts


@dataclass(frozen=True)
class EvaluationPrompts:
    """Token ids of prompts, and the tokens at which the server ends their completions."""

    token_ids: list[list[int]]
    stops: list[int]


def load_builder(model: Path) -> PromptBuilder:
    """The server's prompt builder for a model; TargetError when there is none."""
    settings = PromptSettings(max_prompt_tokens=MAX_PROMPT_TOKENS)
    try:
        return load_prompt_builder(str(model), max_prompt_tokens=MAX_PROMPT_TOKENS, settings=settings)
    except ConfigError as error:
        raise TargetError(f"the server builds no prompts for {model}: {error}") from error


def build_prompts(builder: PromptBuilder, tasks: Sequence[Task]) -> EvaluationPrompts:
    """Build every task's prompt; there is at least one. A missing line leaves the cursor on an empty line.

    Raises TargetError when a prompt does not fit.
    """
    try:
        prompts = [builder.build(_request(number, task)) for number, task in enumerate(tasks)]
    except InvalidRequestError as error:
        raise TargetError(f"a task's prompt does not fit: {error.message}") from error
    return EvaluationPrompts([prompt.token_ids for prompt in prompts], list(prompts[0].stop_token_ids))


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


def wilson(hits: float, total: float) -> tuple[float, float]:
    """Wilson's 95% interval of the share behind `hits` of `total`; accurate near 0 and 1 too."""
    if not total:
        return 0.0, 1.0
    value, spread = hits / total, Z_95**2 / total
    middle = (value + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * math.sqrt(value * (1 - value) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Share:
    """`hits` of `total`, and Wilson's 95% interval of the share behind them.

    `num_independent` is the effective number of independent trials: `total` by default.
    """

    hits: int
    total: int
    num_independent: float | None = None
    interval: tuple[float, float] = field(init=False)
    """A field, not a property, so that it is in the JSON."""

    def __post_init__(self) -> None:
        """Compute the interval."""
        independent = self.total if self.num_independent is None else self.num_independent
        object.__setattr__(self, "interval", wilson(self.value * independent, independent))

    @property
    def value(self) -> float:
        """The share, 0 to 1."""
        return self.hits / self.total if self.total else 0.0

    def __str__(self) -> str:
        """As in "4.7% (3.5 to 6.3)"."""
        low, high = self.interval
        return f"{self.value:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def share_of_groups(outcomes: Sequence[bool], groups: Sequence[object]) -> Share:
    """The share of true outcomes, whose correlation within groups reduces the effective number of trials.

    The number of outcomes is divided by the design effect: the variance of the share over draws of whole groups (ratio
    estimator, linearised), over that of independent outcomes (Kish, "Survey Sampling", 1965, section 8.2). If all
    outcomes are equal, the correlation can't be estimated, and each counts.
    """
    of_group: dict[object, list[bool]] = {}
    for outcome, group in zip(outcomes, groups, strict=True):
        of_group.setdefault(group, []).append(outcome)
    hits, total, num_groups = sum(outcomes), len(outcomes), len(of_group)
    if hits in {0, total}:
        return Share(hits, total, total)
    if num_groups == 1:
        return Share(hits, total, 1)
    value = hits / total
    squares = math.fsum((sum(some) - value * len(some)) ** 2 for some in of_group.values())
    of_groups = squares / total**2 * num_groups / (num_groups - 1)
    of_outcomes = value * (1 - value) / (total - 1)
    return Share(hits, total, total / max(1.0, of_groups / of_outcomes))


@dataclass(frozen=True)
class Mean:
    """A mean per unit over texts of several units each, and its 95% interval over draws of texts.

    `interval` is None for a single text.
    """

    value: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        """As in "2.4370 (2.3771 to 2.4969)"."""
        between = "" if self.interval is None else " ({:.4f} to {:.4f})".format(*self.interval)
        return f"{self.value:.4f}{between}"


def mean_per_unit(sums: Sequence[float], units: Sequence[int]) -> Mean:
    """The mean per unit, where text i has `units[i]` units that sum to `sums[i]`.

    The interval is over draws of whole texts: the tokens of one text are correlated (ratio estimator, linearised).
    """
    value, num = sum(sums) / sum(units), len(sums)
    if num == 1:
        return Mean(value, None)
    squares = math.fsum((total - value * size) ** 2 for total, size in zip(sums, units, strict=True))
    half = Z_95 * math.sqrt(squares * num / (num - 1)) / sum(units)
    return Mean(value, (value - half, value + half))


@dataclass(frozen=True)
class Score:
    """The score of a set of tasks: programs that pass their check, and completions equal to the author's."""

    passed: Share
    exact: Share


def score(tasks: Sequence[Task], completions: Sequence[str], limits: Limits | None = None) -> Score:
    """Run every program, one completion a task (pass@1). Lines of one problem, whose check is the same, are a group."""
    programs = (task.with_completion(completion) for task, completion in zip(tasks, completions, strict=True))
    passed = [result is ProgramResult.PASSED for result in run_programs(programs, limits)]
    exact = list(map(is_exact, tasks, completions))
    problems = [task.check for task in tasks]
    return Score(share_of_groups(passed, problems), share_of_groups(exact, problems))
