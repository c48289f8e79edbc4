"""The path of a request in docs/architecture.md names functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^([\w.]+) +([\w/]+\.py)  ", PAGE, re.MULTILINE)


def functions_of(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{each.name}" for each in functions}
    return found


@pytest.mark.parametrize(("function", "path"), STEPS)
def test_each_step_of_a_request_exists(function: str, path: str) -> None:
    assert function in functions_of(ROOT / "completion_server" / path)


def test_a_request_takes_fifteen_steps() -> None:
    assert len(STEPS) == 15
