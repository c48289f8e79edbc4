"""The text rules show what stands in real files, and rules that do not are found."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from completion_server.core.languages import language_of
from completion_server.text.rules.lines import LineRules
from tests.loadtest.cut_out import Case, Kind, cases_of, damages

ROOT = Path(__file__).parents[2]
SNIPPETS = sorted((ROOT / "tests" / "data" / "snippets").iterdir())
OWN_FOLDERS = (
    "completion_server/text/rules",
    "completion_client",
    "editors/stubs",
    "editors/vscode",
    "proto",
    "deploy/base",
    "docs",
)
MAX_DAMAGED = 0.002


def can_be_told(case: Case) -> bool:
    """Return whether a part differs from one that repeats the rest of its line."""
    rest = case.suffix.partition("\n")[0].strip()
    is_begun = len(rest) == 1 and case.part.lstrip().startswith(rest)
    return not rest or not (is_begun or case.part.rstrip().endswith(rest))


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("file", SNIPPETS, ids=lambda file: file.name)
def test_nothing_of_a_snippet_is_damaged(file: Path, *, is_known: bool) -> None:
    cases = [case for case in cases_of(file.name, file.read_text(encoding="utf-8"), per_kind=20) if can_be_told(case)]
    assert len(cases) > 30
    for case in cases:
        assert list(damages(case if is_known else replace(case, path=""))) == [], case


def test_the_snippets_are_of_many_languages_and_kinds() -> None:
    assert len({language_of("", file.name, "").name for file in SNIPPETS}) >= 20
    kinds = {case.kind for file in SNIPPETS for case in cases_of(file.name, file.read_text(encoding="utf-8"))}
    assert kinds == set(Kind)


def own_files() -> Iterator[Path]:
    for folder in OWN_FOLDERS:
        files = sorted(
            file for file in (ROOT / folder).rglob("*") if file.is_file() and "node_modules" not in file.parts
        )
        yield from (file for file in files if language_of("", file.name, "").name)


def test_hardly_anything_of_the_projects_own_files_is_damaged() -> None:
    files = ((file.name, file.read_text(encoding="utf-8")) for file in own_files())
    cases = [case for name, text in files for case in cases_of(name, text, per_kind=3) if can_be_told(case)]
    found = [case for case in cases for _ in damages(case)]
    assert len(cases) > 1000
    assert len(found) <= MAX_DAMAGED * 2 * len(cases), found


def test_rules_that_drop_a_part_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (SNIPPETS[0].parent / "server.go").read_text(encoding="utf-8")
    monkeypatch.setattr(LineRules, "finish", lambda *_, **__: 0)
    assert any(list(damages(case)) for case in cases_of("server.go", text))
