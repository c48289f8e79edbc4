"""The harness is proven on canned completions: the authors' own pass, empty ones fail, bad ones are held off."""

import gzip
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from target_model.__main__ import main
from target_model.core import TargetError
from target_model.measure import (
    LINE_TOKENS,
    Material,
    Speed,
    TargetFigures,
    TextLosses,
    gpu_memory_bytes,
    measure_all,
    render,
    to_json,
)
from target_model.sandbox import CheckedProgram, Limits, WeakSandboxError
from target_model.tasks import (
    EvaluationPrompts,
    Share,
    Task,
    build_prompts,
    is_exact,
    load_builder,
    mean_per_unit,
    only_function,
    only_line,
    read_tasks,
    read_texts,
    score,
    share_of_groups,
    wilson,
)
from tests.support.models import TARGET
from tests.support.sandbox import LIMITS

BENCHMARKS = Path("target_model/benchmarks")
FIGURES = TargetFigures("first", 1 << 20, 1 << 20, Speed(1.0, 2.0, 3.0), None, None, None, None, None)
RECORD = {
    "task_id": "Set/1",
    "prompt": "def double(x):\n",
    "suffix": "    return y\n",
    "canonical_solution": "    y = 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(4) == 8\n    assert candidate(0) == 0\n",
    "entry_point": "double",
}


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    path = tmp_path / "set.jsonl.gz"
    records = [RECORD, RECORD | {"task_id": "Set/2", "suffix": "", "canonical_solution": "    return x + x\n"}]
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))
    return read_tasks(path)


@pytest.mark.parametrize(
    ("completions", "num_passed", "num_exact"),
    [
        (["    y = 2 * x\n", "    return x + x\n"], 2, 2),
        (["", ""], 0, 0),
        (["    y = x << 1\n", "    return 2 * x\n"], 2, 0),
        (["    y = x\n", "    return x + x  \n"], 1, 1),
        (["    raise SystemExit(0)\n", "    import os; os._exit(0)\n"], 0, 0),
    ],
)
def test_completions_are_scored(tasks: list[Task], completions: list[str], num_passed: int, num_exact: int) -> None:
    found = score(tasks, completions, LIMITS)
    assert (found.passed.hits, found.exact.hits, found.passed.total) == (num_passed, num_exact, 2)


@pytest.mark.parametrize(
    ("name", "num_tasks", "step", "most_without"),
    # Some programs work without the missing line: a docstring's end, a shortcut.
    [("HumanEval.jsonl.gz", 164, 24, 0.0), ("HumanEval-SingleLineInfilling.jsonl.gz", 1_033, 150, 0.1)],
)
def test_the_authors_completions_of_the_packaged_tasks_pass_and_empty_ones_do_not(
    name: str, num_tasks: int, step: int, most_without: float
) -> None:
    tasks = read_tasks(BENCHMARKS / name)
    assert len(tasks) == num_tasks
    assert len({task.check for task in tasks}) == 164, "the lines of a problem are a group"
    some = tasks[::step]
    own = score(some, [task.solution for task in some], LIMITS)
    assert (own.passed.value, own.exact.value) == (1.0, 1.0)
    assert score(some, [""] * len(some), LIMITS).passed.value <= most_without


def test_only_the_requested_part_is_kept_and_indentation_matters(tasks: list[Task]) -> None:
    assert only_line("    y = 1  \n    z = 2\n") == "    y = 1\n"
    assert only_function("    a = 1\n\n    return a\n\n\ndef other():\n    pass\n") == "    a = 1\n\n    return a\n"
    assert only_function("") == "\n"
    assert is_exact(tasks[0], "    y = 2 * x")
    assert not is_exact(tasks[0], "y = 2 * x")


def test_an_interval_is_wilsons() -> None:
    low, high = Share(5, 100).interval
    assert (low, high) == pytest.approx((0.0215, 0.1118), abs=5e-4)
    assert Share(0, 20).interval[0] == pytest.approx(0.0, abs=1e-12)
    assert Share(20, 20).interval[1] == pytest.approx(1.0)
    assert Share(0, 0).interval == (0.0, 1.0)


def test_outcomes_of_one_problem_count_as_one_where_they_agree() -> None:
    outcomes, problems = [True] * 5 + [False] * 15, [number // 5 for number in range(20)]
    alike = share_of_groups(outcomes, problems)
    assert (alike.hits, alike.total) == (5, 20)
    assert alike.num_independent == pytest.approx(60 / 19), (
        "little more than the three problems that differ from a mean"
    )
    assert alike.interval == pytest.approx(wilson(0.25 * 60 / 19, 60 / 19))
    assert share_of_groups(outcomes, range(20)).num_independent == pytest.approx(20)
    mixed = share_of_groups([True, False] * 10, [number // 2 for number in range(20)])
    assert mixed.num_independent == 20, "no more than there are"
    assert share_of_groups([False] * 20, problems).num_independent == 20, "nothing shows how alike they are"
    assert share_of_groups([True, False], [1, 1]).num_independent == 1


def test_a_mean_over_texts_is_as_sure_as_they_agree() -> None:
    """Twenty texts of three tokens, half of them at 1 nat a token and half at 3: tokens of one text count as one."""
    found = mean_per_unit([3.0, 9.0] * 10, [3, 3] * 10)
    assert found.value == 2.0
    assert found.interval == pytest.approx((2 - 1.96 / math.sqrt(19), 2 + 1.96 / math.sqrt(19)), abs=1e-3)
    assert str(mean_per_unit([3.0], [3])) == "1.0000", "no interval"
    ours, theirs = TextLosses((2.0,), (2,), 9), TextLosses((2.0,), (3,), 9)
    assert ours.more_than(theirs) is ours.more_than(None) is None, "of other tokens"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has no tasks"), (b"{}\n", "not a HumanEval file"), (b"no\n", "not a HumanEval file")],
)
def test_an_invalid_file_of_tasks_or_texts_is_a_clear_error(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(content)
    with pytest.raises(TargetError, match=message):
        read_tasks(tmp_path / "f.jsonl")
    with pytest.raises(TargetError, match="cannot read"):
        read_tasks(tmp_path / "missing")
    with pytest.raises(TargetError, match="no texts"):
        read_texts(tmp_path / "f.jsonl")


class Canned:
    """A served model that writes the authors' own text."""

    def __init__(self, tasks: list[Task], nats: float) -> None:
        self.tasks = tasks
        self.nats = nats

    def complete(self, prompts: EvaluationPrompts, max_tokens: int) -> list[str]:
        assert max_tokens == LINE_TOKENS
        return [task.solution + "and more\n" for task in self.tasks[: len(prompts.token_ids)]]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def opening(self, marker: str) -> list[int]:
        assert marker == "<|file_sep|>"
        return [4]

    def losses(self, rows: list[list[int]]) -> list[float]:
        assert all(row[0] == 4 and 1 < len(row) <= 513 for row in rows)
        return [self.nats * (len(row) - 1) for row in rows]

    def time(self, prompts: list[list[int]]) -> Speed:
        assert prompts
        return Speed(10.0, 100.0, 1000.0)

    def memory_bytes(self) -> int:
        return 1 << 20


def test_models_are_measured_side_by_side(tasks: list[Task]) -> None:
    nats = iter((math.log(2), math.log(2) + 0.01))

    @contextmanager
    def serve(_: Path) -> Iterator[Any]:
        yield Canned(tasks[:1], next(nats))

    material = Material(lines=tasks[:1], texts=["x" * 1025, "y" * 600])
    first, second = measure_all([("bf16", TARGET), ("int8", TARGET)], material, serve, LIMITS)
    table = render([first, second])
    assert table.splitlines()[0] == "| figure | bf16 | int8 |"
    assert "| HumanEval pass@1 | - | - |" in table
    assert "| more than the first model's | - | 0.0100 (0.0100 to 0.0100) |" in table
    parsed, more = json.loads(to_json([first, second]))
    interval = pytest.approx([0.2065, 1.0], abs=5e-4)
    one = {"hits": 1, "total": 1, "num_independent": 1, "interval": interval}
    assert parsed["lines"] == {"passed": one, "exact": one}
    assert parsed["loss"]["value"] == pytest.approx(math.log(2))
    assert parsed["bits_per_byte"] == pytest.approx(1.0)
    assert (parsed["functions"], parsed["loss_more"]) == (None, None)
    assert more["loss_more"]["interval"] == pytest.approx([0.01, 0.01])
    with pytest.raises(TargetError, match="the held-out texts are empty"):
        list(measure_all([("one", TARGET)], Material(texts=["", ""]), lambda _: nullcontext(Canned(tasks, 1.0))))


def test_the_prompts_are_the_servers_with_the_cursor_on_an_empty_line(tasks: list[Task]) -> None:
    builder = load_builder(TARGET)
    prompts = build_prompts(builder, tasks)
    line, function = prompts.token_ids
    assert line[0] == function[0] == 1
    assert line[-1] == function[-1] == 3
    assert prompts.stops == [1, 2, 3, 4], "the markers, and no newline"
    with pytest.raises(TargetError, match="does not fit"):
        build_prompts(builder, [Task("x", "a" * 100_000, "", "", "")])
    with pytest.raises(TargetError, match="builds no prompts"):
        load_builder(Path("missing"))


def test_figures_are_reported_before_a_later_model_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "new" / "figures.json"

    def measured(*_: object) -> Iterator[TargetFigures]:
        yield FIGURES
        assert json.loads(out.read_text())[0]["name"] == "first"
        raise ValueError("what vLLM says")

    monkeypatch.setattr("target_model.__main__.measure_all", measured)
    result = CliRunner().invoke(main, ["evaluate", "--model", "first", "--model", "second", "--out", str(out)])
    assert str(result.exception) == "what vLLM says"
    assert "| figure | first |" in result.stdout


def test_bad_options_are_errors_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text("hours of measuring")
    monkeypatch.setattr("target_model.__main__.measure_all", lambda *_: pytest.fail("measured"))
    for arguments, status, message in (
        (["--out", str(earlier / "out.json")], 1, "Error: cannot write"),
        (["--out", str(earlier), "--humaneval", "missing"], 1, "cannot read missing"),
        (["--engine-options", "[1]"], 2, "'[1]' is not a JSON object"),
        (["--engine-options", "{"], 2, "'{' is not JSON"),
    ):
        result = CliRunner().invoke(main, ["evaluate", "--model", "first", *arguments])
        assert (result.exit_code, message in result.output) == (status, True), result.output
    assert earlier.read_text() == "hours of measuring", "nothing better has come"


def test_without_a_strong_sandbox_nothing_is_measured_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[bool] = []

    def measured(*arguments: Any) -> Iterator[TargetFigures]:
        allowed.append(arguments[-1].allow_weak)
        yield FIGURES

    def run_weak(_checked: CheckedProgram, limits: Limits) -> None:
        if not limits.allow_weak:
            raise WeakSandboxError("no namespaces")

    monkeypatch.setattr("target_model.__main__.measure_all", measured)
    monkeypatch.setattr("target_model.__main__.run_program", run_weak)
    command = ["evaluate", "--model", "first", "--humaneval", str(BENCHMARKS / "HumanEval.jsonl.gz")]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1
    assert "can't be confined here: no namespaces" in refused.output
    assert allowed == []
    assert CliRunner().invoke(main, [*command, "--allow-weak-sandbox"]).exit_code == 0
    assert allowed == [True]


def test_the_memory_is_the_sum_over_all_gpus_and_a_driver_without_an_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def answer(script: str) -> None:
        driver.write_text(f"#!/bin/sh\n{script}\n")
        driver.chmod(0o755)

    answer('[ "$1" = --query-gpu=memory.used ] && printf "1024\\n512\\n"')
    assert gpu_memory_bytes() == 1536 * 2**20
    for script in ("exit 9", "echo '[N/A]'"):
        answer(script)
        with pytest.raises(TargetError, match="nvidia-smi does not tell the GPU's memory"):
            gpu_memory_bytes()
