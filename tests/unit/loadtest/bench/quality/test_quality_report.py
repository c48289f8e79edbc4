"""The figures, intervals and tables of contestants whose answers are known."""

import math

import pytest
from click.testing import CliRunner

from loadtest.bench.quality.__main__ import corpus_digest, main
from loadtest.bench.quality.cursors import Cursor
from loadtest.bench.quality.measures import MEASURES, Scores, figures, slug
from loadtest.bench.runner.benchmark import split_intervals
from loadtest.bench.runner.figures import for_json


def at(path: str, kind: str, language: str = "python", of_set: str = "files") -> Cursor:
    about = {"set": of_set, "path": path, "digest": "", "licence": "", "language": language, "kind": kind}
    return Cursor(**about, before="x = ", truth="one", after="\n")


CURSORS = [
    *(at(f"a{number}.py", kind) for number in range(8) for kind in ("word", "gap")),
    *(at(f"b{number}.json", "gap", "json") for number in range(4)),
    at("task", "word", of_set="humaneval"),
]
"""20 cursors in 12 files and one in HumanEval. The contestant "plain" is right in every second one, "server" always."""
ANSWERS = {"plain": ["one", ""] * 10 + ["one"], "server": ["one"] * 21}


@pytest.fixture
def scores() -> Scores:
    return Scores(CURSORS, ANSWERS, 1)


def test_shares_are_of_the_cursors_in_files_and_each_has_its_interval(scores: Scores) -> None:
    values, intervals = split_intervals(for_json(figures(scores, "plain")))
    assert values["cursors"] == 20
    assert values["contestants"] == {"plain": "plain", "server": "server"}
    assert (values["plain_exact"], values["plain_empty"], values["server_exact"]) == (0.5, 0.5, 1.0)
    low, high = intervals["plain_exact"]
    assert 0.2 < (low or 0) <= 0.5 <= (high or 1) < 0.8
    assert intervals["server_exact"] == [1.0, 1.0]
    assert {f"server_{name}" for name in MEASURES} <= values.keys()


def test_a_ratio_has_the_interval_of_the_same_resamples(scores: Scores) -> None:
    found = figures(scores, "plain")
    assert found["server_exact_ratio"].value == 2.0
    assert found["server_exact_ratio"].low == pytest.approx(1 / found["plain_exact"].high)
    assert math.isnan(found["server_broken_ratio"].value)
    assert "plain_exact_ratio" not in found
    assert "server_exact_ratio" not in figures(scores, "other")


def test_kinds_languages_and_sets_have_their_own_figures(scores: Scores) -> None:
    found = figures(scores, "plain")
    assert found["by_kind"]["word"]["plain"]["exact"].value == 1.0
    assert found["by_kind"]["gap"]["plain"]["exact"].value == 2 / 12
    assert found["by_language"].keys() == {"python", "json"}
    assert found["by_language"]["json"]["cursors"] == 4
    assert found["by_set"]["humaneval"]["plain"]["exact"].value == 1.0


def test_the_same_seed_gives_the_same_intervals(scores: Scores) -> None:
    assert str(figures(scores, "plain")) == str(figures(Scores(CURSORS, ANSWERS, 1), "plain"))


@pytest.mark.parametrize(
    ("name", "expected"), [("plain", "plain"), ("plain, healed", "plain_healed"), ("server, K=4", "server_K_4")]
)
def test_names_become_names_of_figures(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_the_digest_tells_other_questions_apart() -> None:
    assert corpus_digest(CURSORS) == corpus_digest(list(CURSORS))
    assert corpus_digest(CURSORS) != corpus_digest(CURSORS[1:])


def test_a_contestant_that_is_not_known_is_refused_before_the_work() -> None:
    found = CliRunner().invoke(main, ["--contestant", "plian"])
    assert found.exit_code == 1
    assert "contestant 'plian': unknown; one of 'plain', 'plain, healed', 'server'" in found.output
