"""docs/configuration.md agrees with the code."""

import runpy

import pytest

from tests.support.models import ROOT

GENERATE = runpy.run_path(str(ROOT / "docs" / "generate_configuration.py"))["generate"]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_configuration() -> None:
    assert GENERATE(PAGE) == PAGE, "run `make docs`"


def test_every_table_is_written_anew_and_the_introduction_kept() -> None:
    intro = PAGE[: PAGE.index("## `[server]`")]
    assert GENERATE(intro) == PAGE
    assert GENERATE(intro + "## What was there before\n") == PAGE


def test_a_page_without_the_marker_is_left_alone() -> None:
    with pytest.raises(ValueError, match="lacks the line"):
        GENERATE("# Configuration\n")
