"""Measures the embedded models: quality, the loss by INT8, and the draft's acceptance.

It runs the commands `target-model evaluate` and `draft-model evaluate`, and collects their figures.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from loadtest.bench.common.command import json_option
from loadtest.bench.common.figures import report_console
from loadtest.bench.models.figures import IDENTITY_TOKENS, SPECULATE, figures

TEXTS = 24
"""Of the 71 held-out files, evenly."""
TARGET, TARGET_BF16 = Path("target_model/embedded"), Path("target_model/embedded-bf16")
DRAFT, HELD_OUT = Path("draft_model/embedded"), Path("draft_model/held_out")
BENCHMARKS = Path("target_model/benchmarks")
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--target", type=FOLDER, default=TARGET, show_default=True, help="The target as it is served, INT8.")
@click.option("--target-bf16", type=FOLDER, default=TARGET_BF16, show_default=True, help="The same in bfloat16.")
@click.option("--draft", type=FOLDER, default=DRAFT, show_default=True)
@click.option("--cursors", type=click.IntRange(10), default=100, show_default=True, help="For acceptance.")
@click.option(
    "--max-tasks", type=click.IntRange(1), default=400, show_default=True, help="Of the 1,033 single lines, evenly."
)
@click.option("--allow-weak-sandbox", is_flag=True, help="Passed on to `target-model evaluate`.")
@json_option
def main(
    *, target: Path, target_bf16: Path, draft: Path, cursors: int, max_tasks: int, allow_weak_sandbox: bool,
    as_json_only: bool,
) -> None:  # fmt: skip
    """Evaluate a target in INT8 and bfloat16, and its draft. The last line is a JSON object.

    Held-out code and HumanEval's single lines, in the real engine. What the models write is run in a sandbox.

    \b
    Example:
        python -m loadtest.bench.models --cursors 50 --max-tasks 100
    """
    with tempfile.TemporaryDirectory(prefix="bench-models-") as folder:
        targets, pair = Path(folder) / "targets.json", Path(folder) / "pair"
        said = _run(
            "target_model", "evaluate", "--model", f"bf16={target_bf16}", "--model", f"int8={target}",
            "--single-line", str(BENCHMARKS / "HumanEval-SingleLineInfilling.jsonl.gz"),
            "--max-tasks", str(max_tasks), "--max-texts", str(TEXTS),
            "--held-out", str(HELD_OUT / "held_out-00000.parquet"), "--out", str(targets),
            *(["--allow-weak-sandbox"] if allow_weak_sandbox else []),
        )  # fmt: skip
        said += "\n" + _run(
            "draft_model", "evaluate", "--target", str(target), "--draft", str(draft), "--corpus", str(HELD_OUT),
            "--speculate", str(SPECULATE), "--cursors", str(cursors), "--greedy-only", "--out", str(pair),
            "--prompts", str(BENCHMARKS / "HumanEval.jsonl.gz"), "--prompt-tokens", str(IDENTITY_TOKENS),
        )  # fmt: skip
        found = figures(_read(targets), _read(pair / "report.json"))
    if not as_json_only:
        report_console().print(said, markup=False, highlight=False)
    click.echo(json.dumps(found))


def _read(path: Path) -> Any:  # noqa: ANN401 - any JSON that the command wrote
    return json.loads(path.read_text(encoding="utf-8"))


def _run(module: str, *arguments: str) -> str:
    """Return the output of a command, while its errors and progress are shown. Raises ClickException if it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"`{module} {arguments[0]}` failed with status {done.returncode}, see above")
    return done.stdout


if __name__ == "__main__":
    main()
