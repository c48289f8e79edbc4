"""The documents agree with the code and with each other."""

import re
import runpy
from pathlib import Path

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


_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")
_PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("README.md")])


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    for title in _HEADING.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        anchor = _NOT_IN_ANCHORS.sub("", text.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
        if found[anchor]:
            found[f"{anchor}-{found[anchor]}"] = 0
    return set(found)


def broken_links(page: Path) -> list[str]:
    """Return the links of a page within the repository that lead nowhere."""
    broken = []
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    assert broken_links(page) == []
