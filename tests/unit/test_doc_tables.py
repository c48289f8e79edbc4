"""The tables of figures in the documents are those of the recorded benchmarks."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

from tests.support.models import ROOT

_MODULE = runpy.run_path(str(ROOT / "docs" / "generate_tables.py"))
PAGES: tuple[Path, ...] = _MODULE["PAGES"]
PAGE = "Before\n<!-- table: speed -->\nby hand\n<!-- end of table -->\nafter\n"


def generate(page: str, *arguments: Any) -> str:
    return str(_MODULE["generate"](page, *arguments))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_tables_are_those_of_the_recorded_benchmarks(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert generate(page) == page, "run `make docs`"


def test_each_recorded_benchmark_is_shown_on_a_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    benchmarks = ROOT / "benchmarks"
    recorded = {path.stem for path in benchmarks.glob("*.json")}
    names = [path.stem for path in benchmarks.glob("*.j2") if path.stem.partition("-")[0] in recorded]
    assert names
    assert [name for name in names if f"<!-- table: {name} -->" not in text] == []


def test_a_table_has_the_figures_with_their_intervals_and_their_source(tmp_path: Path) -> None:
    document = {
        "benchmark": "speed",
        "figures": {"ratio": 1.234, "count": 1234.5, "none": None},
        "intervals": {"ratio": [1.1, 1.36]},
        "commit": "0123456789+",
        "date": "2026-11-04T10:00:00+00:00",
        "processor": "2 x a processor",
    }
    template = '| {{ "ratio" | ci }} | {{ figures["count"] | n }} | {{ none | n }} |\n'
    (tmp_path / "speed.j2").write_text(template, encoding="utf-8")
    with pytest.raises(FileNotFoundError):
        generate(PAGE, tmp_path)
    (tmp_path / "speed.json").write_text(json.dumps(document), encoding="utf-8")
    shown = generate(PAGE, tmp_path)
    assert "| 1.2 (1.1 to 1.4) | 1,234 | - |\n\n`make bench-speed`, 4 November 2026, commit 0123456, 2 x" in shown
    assert "by hand" not in shown
    assert generate(shown, tmp_path) == shown
    (tmp_path / "speed.j2").write_text("{{ gone }}", encoding="utf-8")
    with pytest.raises(UndefinedError, match="gone"):
        generate(PAGE, tmp_path)
